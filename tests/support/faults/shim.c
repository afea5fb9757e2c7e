/* System calls that change files below one folder are counted, and chosen ones fail, write only a part, or are the last.
 *
 * Loaded with LD_PRELOAD, so that Python, SQLite, Arrow and Rust libraries meet the same faults. A program calls
 * fault_watch(folder) and then fault_rule(...) for every fault; without a rule calls are only counted.
 *
 * POWER stops the process as a power failure would: bytes that no fsync has covered are cut off, renames and new names
 * are undone unless their folder was synced afterwards, and what was cut off a file without a sync is there again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { FAIL = 1, SHORT, STOP, TORN, POWER };
#define MOST_RULES 4
#define MOST_FILES 4096
#define STOPPED 137

struct rule { long first, last; enum mode mode; int code; };
struct file { dev_t device; ino_t inode; off_t synced; int descriptor; off_t cut_at; size_t cut_length; char *cut; };
struct name { char to[PATH_MAX], from[PATH_MAX], kept[PATH_MAX]; };

static char folder[PATH_MAX];
static size_t folder_length;
static long num_calls;
static struct rule rules[MOST_RULES];
static int num_rules, num_files, num_names, must_keep;
static struct file files[MOST_FILES];
static struct name names[MOST_FILES / 16];
static char tracked[65536], last_call[32];

void fault_watch(const char *below, int keep_for_power) {
    snprintf(folder, sizeof folder, "%s", below);
    folder_length = strlen(folder);
    num_calls = num_rules = num_files = num_names = 0;
    must_keep = keep_for_power;
}
void fault_rule(long first, long last, int mode, int code) { rules[num_rules++] = (struct rule){first, last, mode, code}; }
long fault_count(void) { return num_calls; }
const char *fault_last(void) { return last_call; }

/* What was kept to undo renames is not needed any more. */
void fault_end(void) {
    for (int i = 0; i < num_names; i++)
        if (names[i].kept[0]) syscall(SYS_unlink, names[i].kept);
    num_names = folder_length = 0;
}

static int is_below(const char *path) { return folder_length && path && !strncmp(path, folder, folder_length); }
static int is_folder(const char *path) {
    return folder_length && path && strlen(path) + 1 == folder_length && !strncmp(path, folder, folder_length - 1);
}
static int is_tracked(int descriptor) { return descriptor >= 0 && descriptor < 65536 && tracked[descriptor]; }

static struct file *file_of(int descriptor) {
    struct stat found;
    if (syscall(SYS_newfstatat, descriptor, "", &found, AT_EMPTY_PATH)) return NULL;
    for (int i = 0; i < num_files; i++)
        if (files[i].device == found.st_dev && files[i].inode == found.st_ino) return &files[i];
    return NULL;
}

static void lose_power(void) {
    for (int i = 0; i < num_files; i++) {
        struct stat found;
        if (!syscall(SYS_newfstatat, files[i].descriptor, "", &found, AT_EMPTY_PATH) && found.st_size > files[i].synced)
            syscall(SYS_ftruncate, files[i].descriptor, files[i].synced);
        if (files[i].cut) syscall(SYS_pwrite64, files[i].descriptor, files[i].cut, files[i].cut_length, files[i].cut_at);
    }
    for (int i = num_names - 1; i >= 0; i--) {
        if (names[i].from[0]) syscall(SYS_rename, names[i].to, names[i].from); else syscall(SYS_unlink, names[i].to);
        if (names[i].kept[0]) syscall(SYS_rename, names[i].kept, names[i].to);
    }
}

/* Which rule applies to this call; processes that end here never return. */
static struct rule *next_call(const char *what) {
    num_calls++;
    snprintf(last_call, sizeof last_call, "%s", what);
    for (int i = 0; i < num_rules; i++)
        if (num_calls >= rules[i].first && num_calls <= rules[i].last) {
            if (rules[i].mode == POWER) lose_power();
            if (rules[i].mode == POWER || rules[i].mode == STOP) syscall(SYS_exit_group, STOPPED);
            return &rules[i];
        }
    return NULL;
}

static int refused(const char *what) {
    struct rule *rule = next_call(what);
    int needs_space = strcmp(what, "unlink") && strcmp(what, "ftruncate") && strcmp(what, "chmod");
    if (!rule || rule->mode != FAIL || (rule->code == ENOSPC && !needs_space)) return 0;
    errno = rule->code;
    return 1;
}

static void note_file(int descriptor, const char *path, int is_new) {
    tracked[descriptor] = 1;
    if (!must_keep || num_files == MOST_FILES || file_of(descriptor)) return;
    struct stat found;
    int own = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (own < 0 || syscall(SYS_newfstatat, own, "", &found, AT_EMPTY_PATH)) return;
    files[num_files++] = (struct file){found.st_dev, found.st_ino, found.st_size, own, 0, 0, NULL};
    if (is_new) { struct name *name = &names[num_names++]; *name = (struct name){{0}}; strcpy(name->to, path); }
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    int is_change = is_below(path) && flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
    int is_new = is_change && syscall(SYS_faccessat, AT_FDCWD, path, F_OK);
    if (is_change && refused("open")) return -1;
    int descriptor = syscall(SYS_openat, at, path, flags, mode);
    if (descriptor >= 0 && descriptor < 65536) {
        tracked[descriptor] = 0;
        if (is_change) note_file(descriptor, path, is_new); else tracked[descriptor] = 2 * (is_below(path) || is_folder(path));
    }
    return descriptor;
}

#define OPEN(name) int name(const char *path, int flags, ...) { va_list rest; va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); va_end(rest); return opened(AT_FDCWD, path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { va_list rest; va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); va_end(rest); return opened(at, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int descriptor) {
    if (is_tracked(descriptor)) tracked[descriptor] = 0;
    return syscall(SYS_close, descriptor);
}

/* How much of a write happens: -1 if nothing; after a torn one the process is over. */
static ssize_t part_of(const char *what, size_t size, enum mode *mode) {
    struct rule *rule = next_call(what);
    *mode = rule ? rule->mode : 0;
    if (rule && rule->mode == FAIL) { errno = rule->code; return -1; }
    return rule && (rule->mode == SHORT || rule->mode == TORN) && size > 1 ? (ssize_t)(size / 2) : (ssize_t)size;
}

#define WRITE(name, call, ...) { enum mode mode; ssize_t size, done; \
    size = part_of(name, length, &mode); if (size < 0) return -1; \
    done = call; if (mode == TORN) syscall(SYS_exit_group, STOPPED); return done; }

ssize_t write(int descriptor, const void *data, size_t length) {
    if (is_tracked(descriptor) != 1) return syscall(SYS_write, descriptor, data, length);
    WRITE("write", syscall(SYS_write, descriptor, data, size))
}
static ssize_t placed(int descriptor, const void *data, size_t length, off_t at) {
    if (is_tracked(descriptor) != 1) return syscall(SYS_pwrite64, descriptor, data, length, at);
    WRITE("pwrite", syscall(SYS_pwrite64, descriptor, data, size, at))
}
ssize_t pwrite(int descriptor, const void *data, size_t length, off_t at) { return placed(descriptor, data, length, at); }
ssize_t pwrite64(int descriptor, const void *data, size_t length, off_t at) { return placed(descriptor, data, length, at); }
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    if (is_tracked(descriptor) == 1 && refused("writev")) return -1;
    return syscall(SYS_writev, descriptor, parts, count);
}

/* A synced folder keeps its names. */
static void forget_names_in(const struct stat *parent) {
    int num_left = 0;
    for (int i = 0; i < num_names; i++) {
        char place[PATH_MAX];
        struct stat found;
        strcpy(place, names[i].to);
        *strrchr(place, '/') = 0;
        int is_other = syscall(SYS_newfstatat, AT_FDCWD, place, &found, 0) || found.st_ino != parent->st_ino;
        if (is_other) names[num_left++] = names[i];
        else if (names[i].kept[0]) syscall(SYS_unlink, names[i].kept);
    }
    num_names = num_left;
}

static int synced(int descriptor, long number, const char *what) {
    if (is_tracked(descriptor) && refused(what)) return -1;
    int result = syscall(number, descriptor);
    if (result || !must_keep || !is_tracked(descriptor)) return result;
    struct stat found;
    if (syscall(SYS_newfstatat, descriptor, "", &found, AT_EMPTY_PATH)) return result;
    struct file *file = file_of(descriptor);
    if (file) { file->synced = found.st_size; free(file->cut); file->cut = NULL; }
    if (S_ISDIR(found.st_mode)) forget_names_in(&found);
    return result;
}
int fsync(int descriptor) { return synced(descriptor, SYS_fsync, "fsync"); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync, "fdatasync"); }

/* What is cut off may have reached the disk before, and the cut itself may not. */
static void keep_cut(struct file *file, off_t length) {
    struct stat found;
    if (syscall(SYS_newfstatat, file->descriptor, "", &found, AT_EMPTY_PATH) || found.st_size <= length) return;
    free(file->cut);
    file->cut_at = length;
    file->cut_length = found.st_size - length;
    file->cut = malloc(file->cut_length);
    syscall(SYS_pread64, file->descriptor, file->cut, file->cut_length, length);
}

static int cut(int descriptor, off_t length) {
    if (is_tracked(descriptor) == 1 && refused("ftruncate")) return -1;
    struct file *file = must_keep ? file_of(descriptor) : NULL;
    if (file) keep_cut(file, length);
    int result = syscall(SYS_ftruncate, descriptor, length);
    if (file && !result && file->synced > length) file->synced = length;
    return result;
}
int ftruncate(int descriptor, off_t length) { return cut(descriptor, length); }
int ftruncate64(int descriptor, off_t length) { return cut(descriptor, length); }

static int moved(const char *from, const char *to) {
    struct name name = {{0}};
    if (is_below(to)) {
        if (refused("rename")) return -1;
        if (must_keep) {
            strcpy(name.to, to); strcpy(name.from, from);
            snprintf(name.kept, sizeof name.kept, "%.4000s.kept%d", to, num_names);
            if (syscall(SYS_linkat, AT_FDCWD, to, AT_FDCWD, name.kept, 0)) name.kept[0] = 0;
            names[num_names++] = name;
        }
    }
    return syscall(SYS_rename, from, to);
}
int rename(const char *from, const char *to) { return moved(from, to); }
int renameat(int at, const char *from, int to_at, const char *to) {
    return at == AT_FDCWD && to_at == AT_FDCWD ? moved(from, to) : syscall(SYS_renameat2, at, from, to_at, to, 0);
}

#define ON_PATH(name, what, number, ...) { if (is_below(path) && refused(what)) return -1; return syscall(number, __VA_ARGS__); }
int unlink(const char *path) ON_PATH(unlink, "unlink", SYS_unlink, path)
int unlinkat(int at, const char *path, int flags) ON_PATH(unlinkat, "unlink", SYS_unlinkat, at, path, flags)
int mkdir(const char *path, mode_t mode) ON_PATH(mkdir, "mkdir", SYS_mkdir, path, mode)
int mkdirat(int at, const char *path, mode_t mode) ON_PATH(mkdirat, "mkdir", SYS_mkdirat, at, path, mode)
int chmod(const char *path, mode_t mode) ON_PATH(chmod, "chmod", SYS_chmod, path, mode)
int fchmodat(int at, const char *path, mode_t mode, int flags) ON_PATH(fchmodat, "chmod", SYS_fchmodat, at, path, mode)
int truncate(const char *path, off_t length) ON_PATH(truncate, "truncate", SYS_truncate, path, length)
int truncate64(const char *path, off_t length) ON_PATH(truncate64, "truncate", SYS_truncate, path, length)
int fchmod(int descriptor, mode_t mode) {
    if (is_tracked(descriptor) == 1 && refused("chmod")) return -1;
    return syscall(SYS_fchmod, descriptor, mode);
}
