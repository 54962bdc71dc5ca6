/* Memory of graphs. */
#ifndef LADING_GRAPHS_H
#define LADING_GRAPHS_H
#include "driver.h"

/* Note that an allocation was captured in a stream: it is a node of the graph now. */
void graph_captured(CUstream, int per_thread, size_t size);
#endif
