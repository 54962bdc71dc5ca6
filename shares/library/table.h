/* What a program has of the driver, and what of it counts.
 *
 * An amount counts before the real call, so that two processes cannot both take the last bytes, and until the memory is really
 * given back: a pool keeps what was freed into it; memory of cuMemCreate lives until its last use is gone.
 * It counts as the card has it, in whole blocks. What a context takes is known to the server, which asks the driver. */
#ifndef LADING_TABLE_H
#define LADING_TABLE_H
#include <signal.h>

#include "driver.h"

enum kind { MEMORY, ARRAY, MIPMAPPED, TILES, HANDLE, MAPPING, EXPORT, ATTACHED, GREEN, SHARED_BLOCK };

#define BLOCK ((int64_t)2 << 20) /* the driver takes whole blocks of the card; smaller allocations share them */

/* Memory that counts while an entry of the table uses it. */
struct memory {
  struct device *device;
  int64_t bytes;
  int uses, imported;
  uint64_t block; /* the number of a block that several allocations share, by which it is in the table; 0: none */
};
struct pool {
  CUmemoryPool pool;     /* NULL: it was destroyed, and memory of it is still allocated */
  struct device *device; /* NULL: not of a card in the grant */
  int64_t counted;       /* memory that it has reserved, and at least what is allocated of it */
  int64_t allocated;
  struct pool *next;
};
/* What a program has of the driver. */
struct entry {
  enum kind kind;
  uint64_t key;          /* TILES: the array. EXPORT: the file descriptor. ATTACHED, GREEN: the context */
  struct memory *memory; /* NULL: it does not count */
  struct pool *pool;     /* MEMORY: it is of this pool */
  int64_t bytes;         /* MEMORY of a pool, MAPPING */
  CUcontext context;     /* it ends with this; NULL: with none */
  int references;        /* HANDLE, ATTACHED: so many calls end it */
  CUarrayMapInfo *place; /* TILES */
  struct entry *next;
};

/* The file that a handle was exported to has a mark, because its number may be given again to another open file of the driver,
 * with the same inode. The mark is the signal that the file would send if it were asynchronous, which it is not (fcntl(2)). */
enum { EXPORTED = SIGURG };

extern pthread_mutex_t table_lock;
extern struct pool *known_pools;

/* With `table_lock` held. */
struct entry **find_slot(enum kind, uint64_t key);
struct memory *use_memory(struct memory *);
void unuse_memory(struct memory *);
struct memory *new_memory(struct device *, int64_t bytes);
struct entry *add_entry(struct entry);
struct entry *unlink_entry(enum kind, uint64_t key);
struct entry *unlink_entries(int (*matches)(const struct entry *, const void *), const void *what);
void link_entries(struct entry *);
void end_entries(struct entry *);
void recount_pool(struct pool *);
void watch_pools(void);
int is_closed(const struct entry *, const void *unused);
void look_at_exports(void);
void settle_memory(int trim);
int add_after_settling(struct device *, int64_t bytes);
CUcontext context_of_memory(void);

/* Without it. */
struct entry *take_entry(enum kind, uint64_t key);
CUresult entries_ended(struct entry *, CUresult);
int64_t pool_attribute(CUmemoryPool, CUmemPool_attribute, int64_t otherwise);
int locate(const CUmemLocation *, int type, struct device **);
CUcontext context_of_thread(void);
CUcontext primary_context(CUdevice);
CUresult device_of_context(CUcontext, CUdevice *);
int64_t whole_blocks(size_t size);
int begin_allocation(struct device *, int64_t bytes);
CUresult end_allocation(enum kind, CUresult, uint64_t key, struct device *, int64_t bytes);
#endif
