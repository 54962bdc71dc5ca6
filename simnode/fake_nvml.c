/* A simulated libnvidia-ml.so.1: what the real pynvml calls for hooks/vendors/nvidia/, and nothing else.
 *
 * FAKE_NVML_STATE (else the file `state` beside this library) names a text file, read when a session opens (NVML enumerates
 * there too), so that a test changes the node between two polls. FAKE_NVML_TRACE, if set, receives a line a call: "init <open
 * sessions>" or "shutdown <open sessions>", or the name of a function that sets something and the card's index.
 * Each nvmlDeviceSetComputeMode adds "<uuid> <mode>" to the file <state file>.modes; the last one of a card is its mode.
 * Instances that are made on a divisible card are in the file <state file>.made: one line each, which removing takes out again.
 * No state file is what a host without the driver looks like: NVML_ERROR_DRIVER_NOT_LOADED.
 * A library whose file, at the end of links, is libnvidia-ml.so.<version> when it is loaded has this version, and opens no session
 * with another version of the driver: NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h, nvmlInit_v2). A file without a version has that
 * of the driver.
 *
 *   driver <version>
 *   gpu <bus id> <uuid> <minor> <memory MiB> <reserved MiB> <mig mode 0 or 1> <model to the end of the line>
 *   mig <gpu index> <slot> <uuid> <gpu instance> <compute instance> <memory MiB> <profile: 1g.10gb, 1c.2g.20gb, 1g.10gb+me>
 *   divisible <gpu index>     it has the MIG profiles of an H100 with 80 GB, and instances can be made on it
 *   bad_mig <gpu index> <slot> <nvmlReturn_t>         what asking for that slot answers
 *   unnamed_mig <gpu index>                           its instances have no name of their own, as with some drivers
 *   process <gpu index> <pid> [<memory MiB> [<gpu instance> <compute instance>]]    without memory: not available
 *   mps_process <gpu index> <pid> <memory MiB>        a client of an MPS server
 *   used <gpu index> <memory MiB> <busy percent>      without it nothing is in use
 *   compute_mode <gpu index> <nvmlComputeMode_t>      without it: default
 *   ecc <gpu index> <uncorrected errors>              volatile; without it: not supported
 *   retired_pending <gpu index>
 *   memory_limits <gpu index> <0 or bytes>            the driver limits memory by cgroup, and says so many bytes less than it was
 *                                                     given; without it: not supported
 *   power <gpu index> <limit mW> <default mW>         without it: not supported
 *   remap_failure <gpu index>
 *   remap_pending <gpu index>
 *   fabric <gpu index> <state> <status>               without it: not supported
 *   module <gpu index> <module id>                    without it the call is not supported; 0 is a card that is on no board
 *   nvlink <gpu index> <link> <nvmlIntNvLinkDeviceType_t> <remote bus id> <active 0 or 1>
 *   fail <gpu index, or -1 for calls without one> <function, or *> <nvmlReturn_t>
 *
 * A limit of memory goes into the cgroup's folder, as the kernel has it: the file dmem.max, a line for each card.
 * Structures and values: nvml.h, API version 12; nvmlMemory_v2_t and nvmlProcessInfo_t as nvidia-ml-py declares them.
 * Not thread-safe, unlike the real one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
    UNINITIALIZED = 1, NO_PERMISSION = 4, LIB_RM_VERSION_MISMATCH = 18, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, UNKNOWN = 999
};
enum { MAX_GPUS = 32, MAX_MIG = 8, MAX_PROCESSES = 64, MAX_FAILURES = 32, MAX_LINKS = 18 };

typedef struct { unsigned pid; unsigned long long used_memory; unsigned gpu_instance, compute_instance; } process_t;
enum { NO_INSTANCE = 0xFFFFFFFF };

typedef struct { int there, active; unsigned remote_type; char remote_bus_id[32]; } link_t;

typedef struct {
    int gpu, slot, gpu_instance, compute_instance;
    char uuid[96], profile[32];
    unsigned long long memory_mib, reserved_mib;
    /* of a card only */
    char bus_id[32], model[96];
    int minor, mig_mode, remap_failure, remap_pending, mig_unnamed, module_id; /* module_id -1: not supported */
    int fabric_state, fabric_status; /* fabric_state 0: not supported */
    int compute_mode, retired_pending;
    int divisible;
    int limits_memory;
    unsigned long long limit_error;
    unsigned power_limit, power_default; /* mW; 0: not supported */
    long long uncorrected; /* -1: not supported */
    unsigned long long used_mib;
    unsigned busy_percent;
    link_t links[MAX_LINKS];
    process_t processes[MAX_PROCESSES], mps_processes[MAX_PROCESSES];
    int process_count, mps_process_count;
} device_t;

typedef struct { int gpu, status; char function[64]; } failure_t;

static int bad_migs[MAX_GPUS][MAX_MIG]; /* nvmlReturn_t of a slot; 0: as it is */

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mib;
} attributes_t;

static char driver[64];
static device_t gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIG];
static failure_t failures[MAX_FAILURES];
static int gpu_count, failure_count, sessions;

static const char *state_path(void) {
    static char beside[4096];
    const char *path = getenv("FAKE_NVML_STATE");
    Dl_info library;
    if (path) return path;
    if (!dladdr((void *)&driver, &library)) return "";
    const char *slash = strrchr(library.dli_fname, '/');
    snprintf(beside, sizeof beside, "%.*sstate", slash ? (int)(slash - library.dli_fname + 1) : 0, library.dli_fname);
    return beside;
}

static char own_version[64];

/* The file's name counts at this moment: a link may lead to another version later, as after an upgrade of the driver. */
__attribute__((constructor)) static void read_own_version(void) {
    static char real[4096];
    static const char name[] = "/libnvidia-ml.so.";
    Dl_info library;
    const char *at;
    if (!dladdr((void *)&driver, &library) || !realpath(library.dli_fname, real)) return;
    at = strrchr(real, '/');
    if (!at || strncmp(at, name, sizeof name - 1) || !strchr(at + sizeof name - 1, '.')) return;
    snprintf(own_version, sizeof own_version, "%s", at + sizeof name - 1);
}

static FILE *open_beside(const char *suffix, const char *how) {
    char name[4200];
    snprintf(name, sizeof name, "%s.%s", state_path(), suffix);
    return fopen(name, how);
}

static FILE *open_modes(const char *how) { return open_beside("modes", how); }

/* The profiles of an H100 80GB, and one (+me) of which there are more places than instances. */
typedef struct { const char *name; unsigned id, slices, count, memory_mib, size; unsigned starts[8], start_count; } profile_t;
static const profile_t profiles[] = {
    {"1g.10gb", 19, 1, 7, 9856, 1, {0, 1, 2, 3, 4, 5, 6}, 7}, {"2g.20gb", 14, 2, 3, 20096, 2, {0, 2, 4}, 3},
    {"3g.40gb", 9, 3, 2, 40448, 4, {0, 4}, 2},                {"4g.40gb", 5, 4, 1, 40448, 4, {0}, 1},
    {"7g.80gb", 0, 7, 1, 80896, 8, {0}, 1},                   {"1g.10gb+me", 20, 1, 1, 9856, 1, {0, 1, 2, 3, 4, 5, 6}, 7},
    {"1g.20gb", 15, 1, 4, 20096, 2, {0, 2, 4, 6}, 4},
};
enum { PROFILES = sizeof profiles / sizeof *profiles, MADE_INSTANCES = 64, FIRST_MADE = 1, REMOVED = -1 };
typedef struct { int gpu, profile, id; unsigned start; int has_compute; unsigned serial; } made_t;
static made_t made[MADE_INSTANCES];
static int made_count;

static void read_made(void) {
    char uuid[96];
    made_t m;
    made_count = 0;
    FILE *file = open_beside("made", "r");
    while (file && made_count < MADE_INSTANCES &&
           fscanf(file, "%95s %d %u %d %d %u", uuid, &m.profile, &m.start, &m.id, &m.has_compute, &m.serial) == 6)
        for (m.gpu = 0; m.gpu < gpu_count; m.gpu++)
            if (!strcmp(gpus[m.gpu].uuid, uuid)) made[made_count++] = m;
    if (file) fclose(file);
    for (int i = 0; i < made_count; i++) {
        if (!made[i].has_compute) continue;
        int slot = 0;
        while (slot < MAX_MIG - 1 && migs[made[i].gpu][slot].uuid[0]) slot++;
        device_t *d = &migs[made[i].gpu][slot];
        *d = (device_t){.gpu = made[i].gpu, .slot = slot, .gpu_instance = made[i].id, .memory_mib = profiles[made[i].profile].memory_mib};
        snprintf(d->uuid, sizeof d->uuid, "MIG-%08x-6d61-6465-0000-%012x", made[i].serial, made[i].gpu);
        snprintf(d->profile, sizeof d->profile, "%s", profiles[made[i].profile].name);
    }
}

static int write_made(void) {
    FILE *file = open_beside("made", "w");
    if (!file) return UNKNOWN;
    for (int i = 0; i < made_count; i++)
        if (made[i].profile != REMOVED) fprintf(file, "%s %d %u %d %d %u\n", gpus[made[i].gpu].uuid, made[i].profile, made[i].start, made[i].id, made[i].has_compute,
                made[i].serial);
    fclose(file);
    return SUCCESS;
}

static void read_modes(void) {
    char uuid[96];
    int mode;
    FILE *file = open_modes("r");
    while (file && fscanf(file, "%95s %d", uuid, &mode) == 2)
        for (int i = 0; i < gpu_count; i++)
            if (!strcmp(gpus[i].uuid, uuid)) gpus[i].compute_mode = mode;
    if (file) fclose(file);
}

static int read_state(void) {
    char line[512];
    FILE *file = fopen(state_path(), "r");
    if (!file) return DRIVER_NOT_LOADED;
    memset(driver, 0, sizeof driver), memset(gpus, 0, sizeof gpus), memset(migs, 0, sizeof migs);
    memset(bad_migs, 0, sizeof bad_migs);
    gpu_count = failure_count = 0;
    while (fgets(line, sizeof line, file)) {
        device_t d = {.gpu = gpu_count, .slot = -1, .module_id = -1, .uncorrected = -1};
        failure_t f;
        link_t l = {.there = 1};
        int at, number, status;
        unsigned percent;
        process_t p = {.gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
        unsigned long long mib;
        if (sscanf(line, "driver %63s", driver) == 1) continue;
        if (sscanf(line, "gpu %31s %95s %d %llu %llu %d %95[^\n]", d.bus_id, d.uuid, &d.minor, &d.memory_mib, &d.reserved_mib,
                   &d.mig_mode, d.model) == 7 && gpu_count < MAX_GPUS) {
            gpus[gpu_count++] = d;
        } else if (sscanf(line, "mig %d %d %95s %d %d %llu %31s", &d.gpu, &d.slot, d.uuid, &d.gpu_instance,
                          &d.compute_instance, &d.memory_mib, d.profile) == 7 && d.gpu < MAX_GPUS && d.slot < MAX_MIG) {
            migs[d.gpu][d.slot] = d;
        } else if (sscanf(line, "divisible %d", &at) == 1 && at < gpu_count) {
            gpus[at].divisible = 1;
        } else if (sscanf(line, "bad_mig %d %d %d", &d.gpu, &d.slot, &number) == 3 && d.gpu < MAX_GPUS && d.slot < MAX_MIG) {
            bad_migs[d.gpu][d.slot] = number;
        } else if (sscanf(line, "unnamed_mig %d", &at) == 1 && at < gpu_count) {
            gpus[at].mig_unnamed = 1;
        } else if ((number = sscanf(line, "process %d %u %llu %u %u", &at, &p.pid, &mib, &p.gpu_instance,
                                    &p.compute_instance)) >= 2 &&
                   at < gpu_count && gpus[at].process_count < MAX_PROCESSES) {
            p.used_memory = number > 2 ? mib << 20 : ~0ULL;
            gpus[at].processes[gpus[at].process_count++] = p;
        } else if (sscanf(line, "mps_process %d %u %llu", &at, &p.pid, &mib) == 3 && at < gpu_count &&
                   gpus[at].mps_process_count < MAX_PROCESSES) {
            p.used_memory = mib << 20;
            gpus[at].mps_processes[gpus[at].mps_process_count++] = p;
        } else if (sscanf(line, "used %d %llu %u", &at, &mib, &percent) == 3 && at < gpu_count) {
            gpus[at].used_mib = mib, gpus[at].busy_percent = percent;
        } else if (sscanf(line, "fabric %d %d %d", &at, &number, &status) == 3 && at < gpu_count) {
            gpus[at].fabric_state = number, gpus[at].fabric_status = status;
        } else if (sscanf(line, "compute_mode %d %d", &at, &number) == 2 && at < gpu_count) {
            gpus[at].compute_mode = number;
        } else if (sscanf(line, "ecc %d %d", &at, &number) == 2 && at < gpu_count) {
            gpus[at].uncorrected = number;
        } else if (sscanf(line, "retired_pending %d", &at) == 1 && at < gpu_count) {
            gpus[at].retired_pending = 1;
        } else if (sscanf(line, "memory_limits %d %llu", &at, &mib) == 2 && at < gpu_count) {
            gpus[at].limits_memory = 1, gpus[at].limit_error = mib;
        } else if (sscanf(line, "power %d %u %d", &at, &percent, &number) == 3 && at < gpu_count) {
            gpus[at].power_limit = percent, gpus[at].power_default = number;
        } else if (sscanf(line, "remap_failure %d", &at) == 1 && at < gpu_count) {
            gpus[at].remap_failure = 1;
        } else if (sscanf(line, "remap_pending %d", &at) == 1 && at < gpu_count) {
            gpus[at].remap_pending = 1;
        } else if (sscanf(line, "module %d %d", &at, &number) == 2 && at < gpu_count) {
            gpus[at].module_id = number;
        } else if (sscanf(line, "nvlink %d %d %u %31s %d", &at, &number, &l.remote_type, l.remote_bus_id, &l.active) == 5 &&
                   at < gpu_count && number < MAX_LINKS) {
            gpus[at].links[number] = l;
        } else if (sscanf(line, "fail %d %63s %d", &f.gpu, f.function, &f.status) == 3 && failure_count < MAX_FAILURES) {
            failures[failure_count++] = f;
        } else {
            fprintf(stderr, "fake NVML: cannot use line: %s", line);
            fclose(file);
            return UNKNOWN;
        }
    }
    fclose(file);
    read_modes();
    read_made();
    return SUCCESS;
}

static void trace(const char *what, int number) {
    const char *path = getenv("FAKE_NVML_TRACE");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %d\n", what, number);
    fclose(file);
}

static int status_of(const char *function, int gpu) {
    for (int i = 0; i < failure_count; i++)
        if (failures[i].gpu == gpu && (!strcmp(failures[i].function, "*") || !strcmp(failures[i].function, function)))
            return failures[i].status;
    return SUCCESS;
}

/* Every call but nvmlInit, nvmlShutdown and nvmlErrorString begins so: a session is open, and no scripted failure. */
#define CHECK(gpu)                                        \
    do {                                                  \
        if (!sessions) return UNINITIALIZED;              \
        int scripted = status_of(__func__, (gpu));        \
        if (scripted) return scripted;                    \
    } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!sessions) {
        int status = read_state();
        if (!status && *own_version && strcmp(own_version, driver)) status = LIB_RM_VERSION_MISMATCH;
        if (!status) status = status_of(__func__, -1);
        if (status) return status;
    }
    sessions++;
    trace("init", sessions);
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    trace("shutdown", sessions);
    return SUCCESS;
}

const char *nvmlErrorString(int status) {
    static char text[32];
    snprintf(text, sizeof text, "NVML error %d", status);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CHECK(-1);
    snprintf(version, length, "%s", driver);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK(-1);
    *count = gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device) {
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    CHECK((int)index);
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
    for (int index = 0; index < gpu_count; index++) {
        if (strcmp(gpus[index].uuid, uuid)) continue;
        CHECK(index);
        *device = &gpus[index];
        return SUCCESS;
    }
    CHECK(-1);
    return NOT_FOUND;
}

int nvmlDeviceSetComputeMode(device_t *device, unsigned mode) {
    CHECK(device->gpu);
    FILE *file = open_modes("a");
    if (!file) return UNKNOWN;
    fprintf(file, "%s %u\n", device->uuid, mode);
    fclose(file);
    return SUCCESS;
}

typedef struct { const char *cgroup; unsigned long long soft, hard; } set_limits_t;
typedef struct { const char *cgroup; unsigned long long soft, hard, used; } get_limits_t;
enum { LIMITS = 4096 };

/* The driver's name of the card's memory in dmem.max: nvidia/0000:3b:00.0/vidmem. */
static void name_region(const device_t *device, char *name, size_t length) {
    unsigned domain, bus, slot, function;
    sscanf(device->bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function);
    snprintf(name, length, "nvidia/%04x:%02x:%02x.%x/vidmem", domain, bus, slot, function);
}

/* Read dmem.max: the other cards' lines into `others`, and return this card's limit. */
static unsigned long long read_limit(const char *cgroup, const char *region, char *others) {
    char path[LIMITS], line[256], name[128];
    unsigned long long bytes, found = ~0ULL;
    others[0] = 0;
    snprintf(path, sizeof path, "%s/dmem.max", cgroup);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %llu", name, &bytes) != 2) continue;
        if (!strcmp(name, region)) found = bytes;
        else if (strlen(others) + strlen(line) < LIMITS) strcat(others, line);
    }
    if (file) fclose(file);
    return found;
}

int nvmlDeviceSetMemoryLimits_v1(device_t *device, const set_limits_t *limits) {
    CHECK(device->gpu);
    if (!device->limits_memory || device->mig_mode) return NOT_SUPPORTED;
    char path[LIMITS], region[128], others[LIMITS];
    name_region(device, region, sizeof region);
    read_limit(limits->cgroup, region, others);
    snprintf(path, sizeof path, "%s/dmem.max", limits->cgroup);
    FILE *file = fopen(path, "w");
    if (!file) return NO_PERMISSION;
    fputs(others, file);
    if (limits->hard != ~0ULL) fprintf(file, "%s %llu\n", region, limits->hard);
    fclose(file);
    trace(__func__, device->gpu);
    return SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(device_t *device, get_limits_t *limits) {
    CHECK(device->gpu);
    if (!device->limits_memory || device->mig_mode) return NOT_SUPPORTED;
    char region[128], others[LIMITS];
    name_region(device, region, sizeof region);
    limits->soft = limits->used = 0;
    limits->hard = read_limit(limits->cgroup, region, others) - device->limit_error;
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t *device, char *uuid, unsigned length) {
    CHECK(device->gpu);
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *device, char *name, unsigned length) {
    CHECK(device->gpu);
    const device_t *card = &gpus[device->gpu];
    if (device->slot < 0 || card->mig_unnamed) snprintf(name, length, "%s", card->model);
    else snprintf(name, length, "%s MIG %s", card->model, device->profile);
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(device_t *device, attributes_t *attributes) {
    CHECK(device->gpu);
    unsigned compute, slices;
    memset(attributes, 0, sizeof *attributes);
    if (device->slot < 0) return NOT_SUPPORTED;
    if (sscanf(device->profile, "%uc.%ug", &compute, &slices) != 2) {
        if (sscanf(device->profile, "%ug", &slices) != 1) return UNKNOWN;
        compute = slices;
    }
    attributes->gpu_instance_slices = slices;
    attributes->compute_instance_slices = compute;
    attributes->memory_mib = device->memory_mib;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_info_t *info) {
    CHECK(device->gpu);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", gpus[device->gpu].bus_id);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(device_t *device, unsigned *minor) {
    CHECK(device->gpu);
    if (device->slot >= 0) return NOT_SUPPORTED;
    *minor = device->minor;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory) {
    CHECK(device->gpu);
    memory->total = device->memory_mib << 20;
    memory->used = (device->reserved_mib + device->used_mib) << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *memory) {
    CHECK(device->gpu);
    if (memory->version != 0x02000028) return INVALID_ARGUMENT;
    memory->total = device->memory_mib << 20;
    memory->reserved = device->reserved_mib << 20;
    memory->used = device->used_mib << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *utilization) {
    CHECK(device->gpu);
    if (device->slot >= 0 || device->mig_mode > 0) return NOT_SUPPORTED;
    utilization->gpu = device->busy_percent;
    utilization->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    CHECK(device->gpu);
    *current = *pending = device->mig_mode;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *count) {
    CHECK(device->gpu);
    *count = device->mig_mode > 0 ? MAX_MIG - 1 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned index, device_t **mig) {
    CHECK(device->gpu);
    if (index < MAX_MIG && bad_migs[device->gpu][index]) return bad_migs[device->gpu][index];
    if (index >= MAX_MIG || !migs[device->gpu][index].uuid[0]) return NOT_FOUND;
    *mig = &migs[device->gpu][index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(device_t *device, unsigned *id) {
    CHECK(device->gpu);
    if (device->slot < 0) return NOT_SUPPORTED;
    *id = device->gpu_instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(device_t *device, unsigned *id) {
    CHECK(device->gpu);
    if (device->slot < 0) return NOT_SUPPORTED;
    *id = device->compute_instance;
    return SUCCESS;
}

static int copy_processes(const process_t *from, int there, unsigned *count, process_t *to) {
    int status = (int)*count < there ? INSUFFICIENT_SIZE : SUCCESS;
    for (int i = 0; !status && i < there; i++) to[i] = from[i];
    *count = there;
    return status;
}

/* Add the processes that the fake libcuda.so.1 runs, with what they have of the card now: their contexts and memory (seen). Clients
 * of an MPS server are in a list of their own. The files are in FAKE_CUDA_DIR, if that is set; fake_cuda.c says what is in them. */
enum { CUDA_SLOTS = 256 };
static int open_cuda_slots(const device_t *device) {
    static int files[MAX_GPUS]; /* 0: not open. To close one would end the locks that this process itself has on it. */
    const char *folder = getenv("FAKE_CUDA_DIR");
    char path[4096];
    struct stat now, before;
    snprintf(path, sizeof path, "%s/%s.memory", folder ? folder : "", device->uuid);
    if (!folder || stat(path, &now)) return -1;
    int *file = &files[device->gpu], is_same = *file && !fstat(*file, &before) && before.st_ino == now.st_ino;
    if (!is_same) *file = open(path, O_RDWR | O_CLOEXEC);
    return *file;
}
static int add_cuda_processes(const device_t *device, process_t *to, int by_mps) {
    long long bytes[2 * CUDA_SLOTS];
    int added = 0, file = open_cuda_slots(device);
    int there = file >= 0 && pread(file, bytes, sizeof bytes, 0) == sizeof bytes;
    for (int i = 0; there && i < CUDA_SLOTS; i++) {
        struct flock owner = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1};
        if (bytes[i] <= 0 || bytes[CUDA_SLOTS + i] != by_mps || fcntl(file, F_GETLK, &owner) || owner.l_type == F_UNLCK) continue;
        to[added++] = (process_t){owner.l_pid, bytes[i], NO_INSTANCE, NO_INSTANCE};
    }
    return added;
}

static int list_processes(const device_t *device, const process_t *of_file, int number, int by_mps, unsigned *count, process_t *to) {
    process_t all[MAX_PROCESSES + CUDA_SLOTS];
    memcpy(all, of_file, number * sizeof *all);
    return copy_processes(all, number + add_cuda_processes(device, all + number, by_mps), count, to);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *processes) {
    CHECK(device->gpu);
    return list_processes(device, device->processes, device->process_count, 0, count, processes);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *processes) {
    CHECK(device->gpu);
    return list_processes(device, device->mps_processes, device->mps_process_count, 1, count, processes);
}

int nvmlDeviceGetRemappedRows(device_t *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    CHECK(device->gpu);
    *corrected = 0;
    *pending = device->remap_pending;
    *uncorrected = *failed = device->remap_failure;
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(device_t *device, int *mode) {
    CHECK(device->gpu);
    *mode = device->compute_mode;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t *device, int type, int counter, unsigned long long *count) {
    CHECK(device->gpu);
    if (type != 1 || counter != 0) return INVALID_ARGUMENT; /* uncorrected, volatile */
    if (device->uncorrected < 0) return NOT_SUPPORTED;
    *count = device->uncorrected;
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(device_t *device, int *pending) {
    CHECK(device->gpu);
    *pending = device->retired_pending;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(device_t *device, unsigned *limit) {
    CHECK(device->gpu);
    if (!device->power_limit) return NOT_SUPPORTED;
    *limit = device->power_limit;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(device_t *device, unsigned *limit) {
    CHECK(device->gpu);
    if (!device->power_limit) return NOT_SUPPORTED;
    *limit = device->power_default;
    return SUCCESS;
}

/* What is set is in the trace; the state file stays as the test wrote it. */
#define SET(device)                   \
    do {                              \
        CHECK((device)->gpu);         \
        trace(__func__, (device)->gpu); \
        return SUCCESS;               \
    } while (0)

int nvmlDeviceSetPowerManagementLimit(device_t *device, unsigned limit) {
    if (limit != device->power_default && limit < 100000) return INVALID_ARGUMENT;
    SET(device);
}
int nvmlDeviceResetGpuLockedClocks(device_t *device) { SET(device); }
int nvmlDeviceResetMemoryLockedClocks(device_t *device) { SET(device); }
int nvmlDeviceResetApplicationsClocks(device_t *device) { SET(device); }

typedef struct { unsigned char cluster[16]; unsigned status, clique, state; } fabric_t;

int nvmlDeviceGetGpuFabricInfo(device_t *device, fabric_t *info) {
    CHECK(device->gpu);
    if (!device->fabric_state) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->state = device->fabric_state, info->status = device->fabric_status;
    return SUCCESS;
}

int nvmlDeviceGetModuleId(device_t *device, unsigned *module_id) {
    CHECK(device->gpu);
    if (device->module_id < 0) return NOT_SUPPORTED;
    *module_id = device->module_id;
    return SUCCESS;
}

/* A link that the card does not have; beyond MAX_LINKS, one that this version of NVML does not know. */
#define CHECK_LINK(device, link)                               \
    do {                                                       \
        CHECK((device)->gpu);                                  \
        if ((link) >= MAX_LINKS) return INVALID_ARGUMENT;      \
        if (!(device)->links[link].there) return NOT_SUPPORTED; \
    } while (0)

int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *active) {
    CHECK_LINK(device, link);
    *active = device->links[link].active;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device_t *device, unsigned link, unsigned *type) {
    CHECK_LINK(device, link);
    *type = device->links[link].remote_type;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *device, unsigned link, pci_info_t *info) {
    CHECK_LINK(device, link);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", device->links[link].remote_bus_id);
    return SUCCESS;
}

/* ---- MIG instances that are made and removed */

typedef struct { unsigned start, size; } placement_t;
typedef struct {
    unsigned version, id, p2p, slices, count, engines[6];
    unsigned long long memory_mib;
    char name[96];
} profile_info_t;
typedef struct { unsigned version, id, slices, count, engines[6]; char name[96]; } compute_profile_info_t;
typedef struct { device_t *device; unsigned id, profile_id; placement_t placement; } instance_info_t;
typedef struct { device_t *device; made_t *gpu_instance; unsigned id, profile_id; placement_t placement; } compute_info_t;

static int is_on(const made_t *instance, const device_t *card) {
    return instance->gpu == card->gpu && instance->profile != REMOVED;
}

static int profile_by_id(unsigned id) {
    for (int i = 0; i < PROFILES; i++)
        if (profiles[i].id == id) return i;
    return -1;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(device_t *device, unsigned number, profile_info_t *info) {
    CHECK(device->gpu);
    if (!device->divisible) return NOT_SUPPORTED;
    if (number >= PROFILES) return INVALID_ARGUMENT;
    const profile_t *p = &profiles[number];
    memset(info, 0, sizeof *info);
    info->id = p->id, info->slices = p->slices, info->count = p->count, info->memory_mib = p->memory_mib;
    snprintf(info->name, sizeof info->name, "MIG %s", p->name);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_t *device, unsigned id, placement_t *places, unsigned *count) {
    CHECK(device->gpu);
    int number = profile_by_id(id);
    if (number < 0) return INVALID_ARGUMENT;
    const profile_t *p = &profiles[number];
    if (places && *count < p->start_count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; places && i < p->start_count; i++) places[i] = (placement_t){p->starts[i], p->size};
    *count = p->start_count;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstances(device_t *device, unsigned id, made_t **instances, unsigned *count) {
    CHECK(device->gpu);
    *count = 0;
    for (int i = 0; i < made_count; i++)
        if (is_on(&made[i], device) && profiles[made[i].profile].id == id) instances[(*count)++] = &made[i];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(device_t *device, unsigned id, made_t **instance) {
    CHECK(device->gpu);
    for (int i = 0; i < made_count; i++)
        if (is_on(&made[i], device) && made[i].id == (int)id) return *instance = &made[i], SUCCESS;
    return NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(made_t *instance, instance_info_t *info) {
    CHECK(instance->gpu);
    const profile_t *p = &profiles[instance->profile];
    *info = (instance_info_t){&gpus[instance->gpu], instance->id, p->id, {instance->start, p->size}};
    return SUCCESS;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(device_t *device, unsigned id, const placement_t *place, made_t **instance) {
    CHECK(device->gpu);
    int number = profile_by_id(id), new_id = FIRST_MADE;
    if (number < 0 || made_count == MADE_INSTANCES) return INVALID_ARGUMENT;
    for (int i = 0; i < made_count; i++) {
        if (!is_on(&made[i], device)) continue;
        unsigned start = made[i].start, size = profiles[made[i].profile].size;
        if (start < place->start + profiles[number].size && place->start < start + size) return INSUFFICIENT_RESOURCES;
        if (made[i].id >= new_id) new_id = made[i].id + 1;
    }
    unsigned serial = 1;
    FILE *file = open_beside("serial", "r"); /* another UUID each time */
    if (file && fscanf(file, "%u", &serial) == 1) serial++;
    if (file) fclose(file);
    if ((file = open_beside("serial", "w"))) fprintf(file, "%u", serial), fclose(file);
    made[made_count] = (made_t){.gpu = device->gpu, .profile = number, .id = new_id, .start = place->start, .serial = serial};
    *instance = &made[made_count++];
    trace(__func__, device->gpu);
    return write_made();
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(made_t *instance, unsigned number, unsigned engines,
                                                  compute_profile_info_t *info) {
    CHECK(instance->gpu);
    if (engines) return NOT_SUPPORTED;
    const profile_t *p = &profiles[instance->profile];
    if (number >= p->slices) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = number, info->slices = number + 1, info->count = p->slices / (number + 1);
    return SUCCESS;
}

int nvmlGpuInstanceCreateComputeInstance(made_t *instance, unsigned profile_id, made_t **compute) {
    CHECK(instance->gpu);
    if (profile_id + 1 != profiles[instance->profile].slices) return INVALID_ARGUMENT; /* it would not be filled */
    instance->has_compute = 1;
    *compute = instance;
    return write_made();
}

int nvmlGpuInstanceGetComputeInstances(made_t *instance, unsigned profile_id, made_t **found, unsigned *count) {
    CHECK(instance->gpu);
    *count = 0;
    if (instance->has_compute && profile_id + 1 == profiles[instance->profile].slices) found[(*count)++] = instance;
    return SUCCESS;
}

int nvmlComputeInstanceGetInfo_v2(made_t *compute, compute_info_t *info) {
    CHECK(compute->gpu);
    memset(info, 0, sizeof *info);
    info->device = &gpus[compute->gpu], info->gpu_instance = compute;
    return SUCCESS;
}

static int in_use(const made_t *instance) {
    const device_t *card = &gpus[instance->gpu];
    for (int i = 0; i < card->process_count; i++)
        if (card->processes[i].gpu_instance == (unsigned)instance->id) return 1;
    return 0;
}

int nvmlComputeInstanceDestroy(made_t *compute) {
    CHECK(compute->gpu);
    if (in_use(compute)) return IN_USE;
    compute->has_compute = 0;
    return write_made();
}

int nvmlGpuInstanceDestroy(made_t *instance) {
    CHECK(instance->gpu);
    if (instance->has_compute) return IN_USE;
    trace(__func__, instance->gpu);
    instance->profile = REMOVED; /* its handle stays until the session ends */
    return write_made();
}
