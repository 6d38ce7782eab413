/* A libnvidia-ml.so.1 without a driver: the part of NVML's C interface that the harness calls.

   The machine is read at every call from the text file that FAKE_NVML_STATE names, so that a test can change it
   under a running program. What the real library rejects is rejected here: calls before nvmlInit, bad handles
   and numbers, buffers that are too small. A line of the file is one of

     version DRIVER NVML
     gpu INDEX key=value...        uuid name (_ is a space) sm total used reserved (MiB) bus mig error
                                   numa (-1: not told, -2: nodes 0 and 1)
                                   compute=PID:MIB graphics=PID:MIB mps=PID:MIB (any number; MIB -1: not told)
     slice INDEX NUMBER key=value...                               a MIG instance of that GPU
     link INDEX INDEX LEVEL NVLINK                                 common ancestor; 1: joined by NVLink
     fail FUNCTION CODE                                            what that function answers, always

   A GPU with an error answers it to everything, its handle included. No file: the driver is not loaded. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25 };
enum { GPUS = 16, SLICES = 8, PROCESSES = 64, MEMORY_V2 = 0x02000028 };
enum { COMPUTE, GRAPHICS, MPS, LISTS };

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    int exists, sm, numa, mig, error, length[LISTS];
    char uuid[96], name[96], bus[32];
    unsigned long long total, used, reserved;
    Process processes[LISTS][PROCESSES];
} Device;
typedef struct { char function[96]; int code; } Failure;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised;
static Device devices[GPUS * (1 + SLICES)]; /* a GPU, then its slices; a handle points here */
static int level[GPUS][GPUS], nvlink[GPUS][GPUS];
static Failure failures[32];
static int failure_count, gpu_count;
static char driver_version[80], nvml_version[80];

static void set(Device *device, const char *key, char *value) {
    static const char *lists[LISTS] = {"compute", "graphics", "mps"};
    char *text = !strcmp(key, "uuid") ? device->uuid : !strcmp(key, "name") ? device->name
               : !strcmp(key, "bus") ? device->bus : NULL;
    int *number = !strcmp(key, "sm") ? &device->sm : !strcmp(key, "numa") ? &device->numa
                : !strcmp(key, "mig") ? &device->mig : !strcmp(key, "error") ? &device->error : NULL;
    unsigned long long *mib = !strcmp(key, "total") ? &device->total : !strcmp(key, "used") ? &device->used
                            : !strcmp(key, "reserved") ? &device->reserved : NULL;
    if (text) {
        snprintf(text, text == device->bus ? 32 : 96, "%s", value);
        for (; *text; text++)
            if (*text == '_') *text = ' ';
    }
    if (number) *number = atoi(value);
    if (mib) *mib = strtoull(value, NULL, 10) << 20;
    for (int list = 0; list < LISTS; list++)
        if (!strcmp(key, lists[list]) && device->length[list] < PROCESSES) {
            char *used = strchr(value, ':');
            Process *process = &device->processes[list][device->length[list]++];
            process->pid = (unsigned)atoi(value);
            process->used = used && used[1] != '-' ? strtoull(used + 1, NULL, 10) << 20 : ~0ULL;
            process->gpu_instance = process->compute_instance = ~0U;
        }
}

static void read_device(Device *device, char *rest) {
    char *place;
    device->exists = 1;
    device->numa = -1;
    for (char *word = strtok_r(rest, " \n", &place); word; word = strtok_r(NULL, " \n", &place)) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value = 0;
        set(device, word, value + 1);
    }
}

static int load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[8192];
    if (!file) return DRIVER_NOT_LOADED;
    memset(devices, 0, sizeof devices);
    memset(nvlink, 0, sizeof nvlink);
    memset(level, 0, sizeof level);
    failure_count = gpu_count = 0;
    while (fgets(line, sizeof line, file)) {
        int a, b, c, d, used = 0;
        if (sscanf(line, "version %79s %79s", driver_version, nvml_version) == 2) continue;
        if (sscanf(line, "link %d %d %d %d", &a, &b, &c, &d) == 4) {
            level[a][b] = level[b][a] = c;
            nvlink[a][b] = nvlink[b][a] = d;
        } else if (sscanf(line, "gpu %d%n", &a, &used) == 1 && a < GPUS) {
            read_device(&devices[a * (1 + SLICES)], line + used);
            if (a >= gpu_count) gpu_count = a + 1;
        } else if (sscanf(line, "slice %d %d%n", &a, &b, &used) == 2 && a < GPUS && b < SLICES) {
            read_device(&devices[a * (1 + SLICES) + 1 + b], line + used);
        } else if (failure_count < 32 && sscanf(line, "fail %95s %d", failures[failure_count].function, &c) == 2) {
            failures[failure_count++].code = c;
        }
    }
    fclose(file);
    return SUCCESS;
}

static int enter(const char *function) {
    int code = load();
    for (int i = 0; i < failure_count && code == SUCCESS; i++)
        if (!strcmp(failures[i].function, function)) code = failures[i].code;
    if (code != SUCCESS) return code;
    return initialised || !strcmp(function, "nvmlInitWithFlags") ? SUCCESS : UNINITIALIZED;
}

static int check(const Device *device) {
    if (device < devices || device >= devices + GPUS * (1 + SLICES) || !device->exists) return INVALID_ARGUMENT;
    return device->error;
}

static int is_slice(const Device *device) { return (device - devices) % (1 + SLICES) != 0; }
static int gpu_of(const Device *device) { return (int)((device - devices) / (1 + SLICES)); }

static int copy(char *to, unsigned length, const char *from) {
    if (!to) return INVALID_ARGUMENT;
    if (strlen(from) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

static int list(const Device *device, int which, unsigned *count, Process *infos) {
    unsigned length = (unsigned)device->length[which];
    if (!count) return INVALID_ARGUMENT;
    if (*count < length || (length && !infos)) {
        *count = length;
        return INSUFFICIENT_SIZE;
    }
    *count = length;
    if (length) memcpy(infos, device->processes[which], length * sizeof *infos);
    return SUCCESS;
}

/* Each function: one at a time, on a fresh reading, with the handle checked where there is one. */
#define API(name, parameters, checked, ...)              \
    int name parameters {                                \
        pthread_mutex_lock(&mutex);                      \
        int code = enter(#name);                         \
        if (code == SUCCESS) code = (checked);           \
        if (code == SUCCESS) code = ({ __VA_ARGS__ });   \
        pthread_mutex_unlock(&mutex);                    \
        return code;                                     \
    }
#define DEVICE(name, parameters, ...) API(name, parameters, check(d), __VA_ARGS__)

API(nvmlInitWithFlags, (unsigned flags), flags ? INVALID_ARGUMENT : SUCCESS, initialised++; SUCCESS;)
API(nvmlShutdown, (void), SUCCESS, initialised--; SUCCESS;)
API(nvmlSystemGetDriverVersion, (char *text, unsigned length), SUCCESS, copy(text, length, driver_version);)
API(nvmlSystemGetNVMLVersion, (char *text, unsigned length), SUCCESS, copy(text, length, nvml_version);)
API(nvmlDeviceGetCount_v2, (unsigned *count), SUCCESS, *count = (unsigned)gpu_count; SUCCESS;)
API(nvmlDeviceGetHandleByIndex_v2, (unsigned index, Device **d),
    index < (unsigned)gpu_count ? check(&devices[index * (1 + SLICES)]) : INVALID_ARGUMENT,
    *d = &devices[index * (1 + SLICES)]; SUCCESS;)
API(nvmlDeviceGetHandleByUUID, (const char *uuid, Device **d), uuid ? SUCCESS : INVALID_ARGUMENT,
    int found = NOT_FOUND;
    for (int i = 0; i < GPUS * (1 + SLICES); i++)
        if (devices[i].exists && !strcmp(devices[i].uuid, uuid)) { *d = &devices[i]; found = check(*d); }
    found;)
DEVICE(nvmlDeviceGetUUID, (Device *d, char *text, unsigned length), copy(text, length, d->uuid);)
DEVICE(nvmlDeviceGetName, (Device *d, char *text, unsigned length), copy(text, length, d->name);)
DEVICE(nvmlDeviceGetCudaComputeCapability, (Device *d, int *major, int *minor),
    *major = d->sm / 10; *minor = d->sm % 10; is_slice(d) ? INVALID_ARGUMENT : SUCCESS;)
DEVICE(nvmlDeviceGetMemoryInfo, (Device *d, Memory *m),
    m->total = d->total; m->used = d->used + d->reserved; m->free = d->total - m->used; SUCCESS;)
DEVICE(nvmlDeviceGetMemoryInfo_v2, (Device *d, MemoryV2 *m),
    int version = m->version == MEMORY_V2 ? SUCCESS : VERSION_MISMATCH;
    if (version == SUCCESS) {
        m->total = d->total; m->reserved = d->reserved; m->used = d->used;
        m->free = d->total - d->used - d->reserved;
    }
    version;)
DEVICE(nvmlDeviceGetPciInfo_v3, (Device *d, Pci *pci),
    memset(pci, 0, sizeof *pci); strcpy(pci->bus_id, d->bus); SUCCESS;)
DEVICE(nvmlDeviceGetMemoryAffinity, (Device *d, unsigned size, unsigned long *nodes, unsigned scope),
    memset(nodes, 0, size * sizeof *nodes);
    if (d->numa >= 0) nodes[d->numa / 64] |= 1UL << d->numa % 64;
    if (d->numa == -2) nodes[0] = 3;
    scope > 1 || !size ? INVALID_ARGUMENT : d->numa == -1 ? NOT_SUPPORTED : SUCCESS;)
DEVICE(nvmlDeviceGetMigMode, (Device *d, unsigned *current, unsigned *pending),
    *current = *pending = d->mig > 0; d->mig < 0 ? NOT_SUPPORTED : SUCCESS;)
DEVICE(nvmlDeviceGetMaxMigDeviceCount, (Device *d, unsigned *count),
    *count = d->mig > 0 ? SLICES - 1 : 0; SUCCESS;)
DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, (Device *d, unsigned index, Device **part),
    int bad = is_slice(d) || index >= SLICES - 1;
    *part = bad ? NULL : d + 1 + index;
    bad ? INVALID_ARGUMENT : d->mig <= 0 ? NOT_SUPPORTED : (*part)->exists ? SUCCESS : NOT_FOUND;)
DEVICE(nvmlDeviceGetComputeRunningProcesses_v3, (Device *d, unsigned *count, Process *infos),
    list(d, COMPUTE, count, infos);)
DEVICE(nvmlDeviceGetGraphicsRunningProcesses_v3, (Device *d, unsigned *count, Process *infos),
    d->mig > 0 || is_slice(d) ? NOT_SUPPORTED : list(d, GRAPHICS, count, infos);)
DEVICE(nvmlDeviceGetMPSComputeRunningProcesses_v3, (Device *d, unsigned *count, Process *infos),
    list(d, MPS, count, infos);)
DEVICE(nvmlDeviceGetTopologyCommonAncestor, (Device *d, Device *other, unsigned *answer),
    *answer = (unsigned)level[gpu_of(d)][gpu_of(other)]; is_slice(d) ? NOT_SUPPORTED : check(other);)
DEVICE(nvmlDeviceGetP2PStatus, (Device *d, Device *other, unsigned caps, unsigned *answer),
    *answer = caps == 2 && nvlink[gpu_of(d)][gpu_of(other)] ? 0 : 5; is_slice(d) ? NOT_SUPPORTED : check(other);)

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}
