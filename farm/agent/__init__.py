"""The native device agent: C++ sources, and the builder that makes an executable of them for a device's architecture."""
