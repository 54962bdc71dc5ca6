"""Build the libraries that replace libcuda.so.1 and NVML in a container; their C sources are in this folder."""
