/* Memory of graphs. The nodes of a graph say how much it is. The driver takes it when an instance of the graph is uploaded, or first
 * launched, and keeps it for later launches, also after the graph is gone, until it is trimmed (cuDeviceGraphMemTrim). So an
 * instance's memory is asked for before its launch, and then what the driver has reserved for graphs counts. */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

#include "compute.h"
#include "table.h"

/* A graph with memory, or an instance of one. */
struct graph {
  const void *handle;
  int64_t bytes[MAX_DEVICES]; /* memory of its nodes, by CUDA's ordinal of the device */
  unsigned took[MAX_DEVICES]; /* number of trims before the instance's last launch, and one; 0: it was not launched */
  struct graph *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph *graphs, *instances;
static _Atomic int has_instances; /* launches of graphs without memory look at nothing else */
static struct {
  int64_t counted, pending; /* `pending`: asked for, for launches that are under way */
  unsigned trims;
} reserved[MAX_DEVICES];

static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  graphs = instances = NULL;
  has_instances = 0;
  memset(reserved, 0, sizeof reserved);
}
__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

/* All with `lock` held. */

static struct graph **find(struct graph **list, const void *handle) {
  while (*list && (*list)->handle != handle) list = &(*list)->next;
  return list;
}

static struct graph *add(struct graph **list, const void *handle) {
  struct graph *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  made->handle = handle;
  made->next = *list;
  return *list = made;
}

static void drop(struct graph **list, const void *handle) {
  struct graph **link = find(list, handle), *one = *link;
  if (!one) return;
  *link = one->next;
  free(one);
}

static void add_bytes(const void *graph, CUdevice ordinal, size_t size) {
  struct graph *one = *find(&graphs, graph);
  if (!device_by_ordinal(ordinal)) return;
  if (!one && !(one = add(&graphs, graph))) return;
  one->bytes[ordinal] += whole_blocks(size);
}

static int64_t read_reserved(CUdevice ordinal) {
  CUstreamCaptureMode mode;
  uint64_t bytes = 0;
  int relaxed = relax(&mode);
  if (real.cuDeviceGetGraphMemAttribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes)) {
    bytes = (uint64_t)(reserved[ordinal].counted - reserved[ordinal].pending);
  }
  if (relaxed) real.cuThreadExchangeStreamCaptureMode(&mode);
  return (int64_t)bytes;
}

/* Count what the driver has reserved for graphs now. */
static void recount(CUdevice ordinal) {
  struct device *device = device_by_ordinal(ordinal);
  int64_t bytes = read_reserved(ordinal) + reserved[ordinal].pending;
  if (bytes > reserved[ordinal].counted) memory_held(device, bytes - reserved[ordinal].counted);
  else memory_sub(device, reserved[ordinal].counted - bytes);
  reserved[ordinal].counted = bytes;
}

static CUresult trim(CUdevice ordinal) {
  CUresult result = real.cuDeviceGraphMemTrim(ordinal);
  if (result) return result;
  reserved[ordinal].trims++;
  recount(ordinal);
  return result;
}

/* Return how much of its memory a launch may have to take: all of it the first time, and what it may have lost by a trim later. */
static int64_t missing(CUdevice ordinal, const struct graph *its) {
  int64_t taken = 0;
  if (!its->took[ordinal]) return its->bytes[ordinal];
  if (its->took[ordinal] == reserved[ordinal].trims + 1) return 0;
  for (struct graph *one = instances; one; one = one->next) taken += one->took[ordinal] ? one->bytes[ordinal] : 0;
  int64_t lost = taken - read_reserved(ordinal);
  return lost < 0 ? 0 : lost < its->bytes[ordinal] ? lost : its->bytes[ordinal];
}

/* Ask for the memory of a launch on one device. */
static int begin_on(CUdevice ordinal, const struct graph *its, int64_t *asked) {
  struct device *device = device_by_ordinal(ordinal);
  int64_t bytes = missing(ordinal, its);
  if (!bytes) return 1;
  /* What graphs had that are gone may be enough. */
  if (!begin_allocation(device, bytes) && (trim(ordinal) || !memory_add(device, bytes))) return 0;
  reserved[ordinal].counted += bytes;
  reserved[ordinal].pending += bytes;
  *asked = bytes;
  return 1;
}

static void end_launch(const void *handle, const int64_t *asked) {
  struct graph *its = *find(&instances, handle);
  for (CUdevice i = 0; i < MAX_DEVICES; i++) {
    if (!asked[i]) continue;
    reserved[i].pending -= asked[i];
    recount(i);
  }
  for (CUdevice i = 0; its && i < MAX_DEVICES; i++) its->took[i] = its->bytes[i] ? reserved[i].trims + 1 : 0;
}

/* Ask for what an instance, or a graph that is about to be one, takes; return whether that is allowed. */
static int begin_launch(struct graph **list, const void *handle, int64_t *asked) {
  pthread_mutex_lock(&lock);
  struct graph *its = *find(list, handle);
  int allowed = 1;
  for (CUdevice i = 0; its && i < MAX_DEVICES && allowed; i++) allowed = begin_on(i, its, &asked[i]);
  if (!allowed) end_launch(NULL, asked);
  pthread_mutex_unlock(&lock);
  return allowed;
}

#define TAKE(list, handle, call, instance) \
  int64_t asked[MAX_DEVICES] = {0}; \
  if (!begin_launch(list, handle, asked)) return CUDA_ERROR_OUT_OF_MEMORY; \
  CUresult result = call; \
  pthread_mutex_lock(&lock); \
  end_launch(result ? NULL : instance, asked); \
  pthread_mutex_unlock(&lock)

#define TAKE_OF_INSTANCE(instance, call) \
  if (!atomic_load(&has_instances)) return call; \
  TAKE(&instances, instance, call, instance); \
  return result

/* Nodes */

static CUresult node_added(CUresult result, CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *node) {
  struct device *device;
  if (result || !locate(&node->poolProps.location, node->poolProps.allocType, &device) || !device) return result;
  pthread_mutex_lock(&lock);
  add_bytes(graph, node->poolProps.location.id, node->bytesize);
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                     CUDA_MEM_ALLOC_NODE_PARAMS *params) {
  return node_added(real.cuGraphAddMemAllocNode(node, graph, after, count, params), graph, params);
}
static CUresult any_node_added(CUresult result, CUgraph graph, const CUgraphNodeParams *params) {
  return result || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ? result : node_added(result, graph, &params->alloc);
}
HOOK CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *p) {
  return any_node_added(real.cuGraphAddNode(node, graph, after, count, p), graph, p);
}
HOOK CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                                CUgraphNodeParams *p) {
  return any_node_added(real.cuGraphAddNode_v2(node, graph, after, edges, count, p), graph, p);
}
HOOK CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                                CUgraphNodeParams *p) {
  return any_node_added(real.cuGraphAddNode_v3(node, graph, after, edges, count, p), graph, p);
}

void graph_captured(CUstream stream, int per_thread, size_t size) {
  CUstreamCaptureStatus status = 0;
  CUgraph graph = NULL;
  CUdevice ordinal;
  __typeof__(real.cuStreamGetCaptureInfo_v2) get = real.cuStreamGetCaptureInfo_v2;
  if (per_thread) get = real.cuStreamGetCaptureInfo_v2_ptsz;
  if (get(stream, &status, NULL, &graph, NULL, NULL) || real.cuCtxGetDevice(&ordinal)) return;
  pthread_mutex_lock(&lock);
  add_bytes(graph, ordinal, size);
  pthread_mutex_unlock(&lock);
}

/* Instances */

static CUresult instantiated(CUresult result, const CUgraphExec *instance, CUgraph graph) {
  if (result) return result;
  pthread_mutex_lock(&lock);
  const struct graph *of = *find(&graphs, graph);
  struct graph *made = of ? add(&instances, *instance) : NULL;
  if (made) memcpy(made->bytes, of->bytes, sizeof made->bytes);
  if (made) atomic_store(&has_instances, 1);
  pthread_mutex_unlock(&lock);
  return result;
}

HOOK CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *text, size_t length) {
  return instantiated(real.cuGraphInstantiate(out, graph, node, text, length), out, graph);
}
HOOK CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *text, size_t length) {
  return instantiated(real.cuGraphInstantiate_v2(out, graph, node, text, length), out, graph);
}
HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  return instantiated(real.cuGraphInstantiateWithFlags(out, graph, flags), out, graph);
}
/* It may upload the instance at once. */
#define INSTANTIATE(call) \
  if (!params || !(*params & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) return instantiated(call, out, graph); \
  TAKE(&graphs, graph, instantiated(call, out, graph), *out); \
  return result
HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, uint64_t *params) {
  INSTANTIATE(real.cuGraphInstantiateWithParams(out, graph, params));
}
HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, uint64_t *params) {
  INSTANTIATE(real.cuGraphInstantiateWithParams_ptsz(out, graph, params));
}

HOOK CUresult cuGraphUpload(CUgraphExec instance, CUstream stream) {
  TAKE_OF_INSTANCE(instance, real.cuGraphUpload(instance, stream));
}
HOOK CUresult cuGraphUpload_ptsz(CUgraphExec instance, CUstream stream) {
  TAKE_OF_INSTANCE(instance, real.cuGraphUpload_ptsz(instance, stream));
}
HOOK CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream) {
  TAKE_OF_INSTANCE(instance, launch_graph(instance, stream));
}
HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec instance, CUstream stream) {
  TAKE_OF_INSTANCE(instance, launch_graph_ptsz(instance, stream));
}

/* Ends. A handle is forgotten before the driver may give it again. */

#define FORGET(list, handle, call) \
  pthread_mutex_lock(&lock); \
  drop(list, handle); \
  pthread_mutex_unlock(&lock); \
  return call
HOOK CUresult cuGraphDestroy(CUgraph graph) { FORGET(&graphs, graph, real.cuGraphDestroy(graph)); }
HOOK CUresult cuGraphExecDestroy(CUgraphExec instance) { FORGET(&instances, instance, real.cuGraphExecDestroy(instance)); }
HOOK CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  if (!device_by_ordinal(ordinal)) return real.cuDeviceGraphMemTrim(ordinal);
  pthread_mutex_lock(&lock);
  CUresult result = trim(ordinal);
  pthread_mutex_unlock(&lock);
  return result;
}
