"""Commands of the group "Measure" of `farm --help`.

Modules:
    deploy     build, upload, run once, compare with the reference, keep the release
    run        run a model on inputs of the user's
    bench      measure models on devices
    profile    time of each kernel of a model on a device
    accuracy   a model's accuracy on a labelled set, on devices
    bisect     find the first operator whose result is wrong on a device
    tune       search for faster schedules on a device
"""
