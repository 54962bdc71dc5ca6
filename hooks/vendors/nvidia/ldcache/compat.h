/* Folders in which an image has NVIDIA's libcuda for a newer CUDA than the node's driver has (CUDA Forward Compatibility). */
#ifndef LADING_COMPAT_H
#define LADING_COMPAT_H

#include "cache.h"

#define MAX_FOLDERS 16

/* Hide the folders whose libcuda is not newer than the driver, and all if `driver` is NULL: an empty folder is mounted over each.
 * Add the libraries of the newest other one to the cache. Return false with a message on standard error. */
bool choose_compat(int root, const char *driver, struct cache *cache);

#endif
