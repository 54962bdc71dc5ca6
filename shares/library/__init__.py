"""Build the library that takes the place of libcuda.so.1 in a container; its sources are beside this file."""
