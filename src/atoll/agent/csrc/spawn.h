/* Starts one process as the sandbox's user. Knows nothing of commands, rings or frames. */
#ifndef ATOLL_SPAWN_H
#define ATOLL_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct identity {
    uid_t uid;
    gid_t gid;
    uint64_t nproc;
    const char *workdir;
};

struct spawn_plan {
    char **argv;
    char **env;      /* complete, NULL-terminated */
    const char *cwd; /* NULL: the identity's */
    int stdio[3];
    bool terminal;   /* stdio[0] becomes the controlling terminal */
    uint64_t tag;    /* what the process tree is recognised by, see proctree.h */
};

enum spawn_outcome { SPAWN_OK, SPAWN_NO_CWD, SPAWN_FAILED };

/* What every process started later inherits: no groups, no capability to gain, no new privileges, no core files, default
 * signals. Called once, before the first spawn. Returns NULL or what failed. */
const char *spawn_prepare(const struct identity *identity);

/* Returns once the program runs (SPAWN_OK; also when it could not be executed: the process then says so on its standard
 * error and ends with 126 or 127) or was refused. */
enum spawn_outcome spawn_process(const struct identity *identity, const struct spawn_plan *plan, pid_t *pid);

/* Where PATH names a variable of `env`, or the usual directories. */
const char *environment_value(char **env, const char *name);

#endif
