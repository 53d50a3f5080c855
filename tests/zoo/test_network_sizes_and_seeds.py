"""The networks with seeded weights: the published sizes, sane numbers, the same on every
machine.
"""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from farm import importers, zoo
from farm.types import Model

# Parameters and multiply-adds as published with torchvision, and the digest of weights and example,
# which must not depend on the machine.
NETWORKS = {
    "mobilenet_v2": (3_504_872, 0.301e9, "efd1b8521036dfbd"),
    "resnet18": (11_689_512, 1.814e9, "edbab483c55028e2"),
    "resnet50": (25_557_032, 4.089e9, "93ebc9bd31c246eb"),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    return request.param, *getattr(zoo, request.param)()


def test_the_sizes_are_those_of_the_papers(network):
    name, module, (image,) = network
    assert sum(parameter.numel() for parameter in module.parameters()) == NETWORKS[name][0]
    assert tuple(image.shape) == (1, 3, 224, 224) and image.dtype == torch.float32
    assert not module.training


def test_the_multiply_adds_are_those_of_the_papers(network):
    name, module, (image,) = network
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(image)
    assert counter.get_total_flops() / 2 == pytest.approx(NETWORKS[name][1], rel=0.01)


def test_scores_are_of_a_scale_at_which_an_error_of_1e_4_means_something(network):
    _, module, (image,) = network
    with torch.no_grad():
        scores, exact = module(image), module.double()(image.double())
    assert scores.shape == (1, 1000)
    assert 0.5 < scores.std() < 5 and 1 < scores.abs().max() < 15
    assert (scores - exact).abs().max() < 2e-5


def test_batch_norms_differ_from_the_identity(network):
    norms = [module for module in network[1].modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        assert norm.running_mean.std() > 0.05 and norm.running_var.std() > 0.1
        assert norm.weight.std() > 0.01 and norm.bias.std() > 0.05


def test_weights_and_example_are_the_same_everywhere(network):
    name, module, (image,) = network
    digest = hashlib.sha256(image.numpy().tobytes())
    for key, tensor in sorted(module.state_dict().items()):
        digest.update(key.encode() + tensor.numpy().tobytes())
    assert digest.hexdigest()[:16] == NETWORKS[name][2]


def test_the_state_of_torchs_own_generator_is_left_alone():
    before = torch.get_rng_state()
    zoo.mobilenet_v2()
    assert torch.equal(before, torch.get_rng_state())


def test_mobilenet_v2_is_imported_whole(tmp_path):
    imported = importers.import_model(Model("m", "python:farm.zoo:mobilenet_v2"), tmp_path)
    assert imported.inputs[0].shape == (1, 3, 224, 224) and imported.outputs[0].shape == (1, 1000)
    assert (
        sum(weight.size for weight in imported.weights) == NETWORKS["mobilenet_v2"][0] + 2 * 17_056
    )  # and batch norm statistics
    assert abs(imported.reference(imported.example)[0]).max() < 15
