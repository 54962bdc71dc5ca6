/* What the rest of the library knows of launches. */
#ifndef LADING_COMPUTE_H
#define LADING_COMPUTE_H
#include "cu.h"
#include "link.h"

/* Start to give back turns that are not used, if that was not done in this process; return whether that is so. */
int turns_up(void);
/* Launch a graph, whose memory is allowed. */
CUresult launch_graph(CUgraphExec, CUstream), launch_graph_ptsz(CUgraphExec, CUstream);
/* Forget the queued work of a context that has ended. */
void forget_launch_context(CUcontext);
#endif
