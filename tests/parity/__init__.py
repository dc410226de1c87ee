"""The official implementation's recorded numbers against this repository."""
