/* What happens to one command between its start and its exit event. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

enum { SCRATCH_BYTES = 64 * 1024, WIDE_PIPE_BYTES = 1024 * 1024, NARROW_PIPE_BYTES = 64 * 1024 };

static void capture_add(struct capture *kept, size_t max, const uint8_t *data, size_t len) {
    size_t room = max - kept->len;
    if (len > room) {
        kept->cut = true;
        len = room;
    }
    if (len == 0) return;
    if (kept->cap - kept->len < len) {
        size_t cap = kept->cap ? kept->cap : 4096;
        while (cap - kept->len < len) cap *= 2;
        kept->data = must_resize(kept->data, cap);
        kept->cap = cap;
    }
    memcpy(kept->data + kept->len, data, len);
    kept->len += len;
}

static ssize_t take_output(struct command *c, int stream, int fd) {
    if (!c->run) return ring_fill(&c->ring, stream == 0 ? EVENT_STDOUT : EVENT_STDERR, fd);
    static uint8_t scratch[SCRATCH_BYTES];
    ssize_t got = read(fd, scratch, sizeof scratch);
    if (got > 0) capture_add(&c->capture[stream], c->capture_max, scratch, (size_t)got);
    return got;
}

/* The other side of a terminal was closed, perhaps to be opened again: its end is the end of the first process. Until
 * then epoll would report the hang-up without pause, so look from time to time. */
static void leave_terminal(struct agent *a, struct command *c) {
    epoll_ctl(a->epoll, EPOLL_CTL_DEL, c->out.fd, NULL);
    c->terminal_look_at = monotonic_ms() + TERMINAL_LOOK_MS;
}

void command_output(struct agent *a, struct command *c, struct source *from) {
    if (from->fd < 0 || follow_holds(a, c)) return;
    int stream = from->kind == SOURCE_STDOUT ? 0 : 1;
    size_t budget = FILL_BYTES;
    while (budget > 0) {
        ssize_t got = take_output(c, stream, from->fd);
        if (got > 0) {
            c->total[stream] += (uint64_t)got;
            a->waiters_due = true;
            /* A command that fills its pipe gets a wider one: fewer switches between it and the agent. */
            if (got >= NARROW_PIPE_BYTES && !c->terminal) fcntl(from->fd, F_SETPIPE_SZ, WIDE_PIPE_BYTES);
            if (got < 4096 && c->phase == PHASE_RUNNING) return; /* most likely all there was */
            budget = (size_t)got < budget ? budget - (size_t)got : 0;
            continue;
        }
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (c->terminal && c->phase == PHASE_RUNNING)
            leave_terminal(a, c);
        else
            source_close(from);
        return;
    }
}

static void settle_exit(struct command *c, int wait_status) {
    bool signaled = WIFSIGNALED(wait_status);
    int number = signaled ? WTERMSIG(wait_status) : 0;
    c->exit_code = signaled ? 128 + number : WEXITSTATUS(wait_status);
    c->reason = c->intent;
    if (c->intent == REASON_NONE && signaled && !(c->asked_signals >> (number - 1) & 1)) c->reason = REASON_KILLED;
    if (c->lost_memory && c->exit_code != 0 && c->intent == REASON_NONE) {
        c->exit_code = 128 + SIGKILL;
        c->reason = REASON_KILLED;
    }
}

static void finish(struct agent *a, struct command *c) {
    /* Somebody wanted the end of it, so nothing of it stays: neither what ignored the signal nor what left the session. */
    if (c->intent != REASON_NONE) tree_kill(c->tree);
    source_close(&c->in);
    source_close(&c->out);
    source_close(&c->err);
    c->deadline_at = c->kill_at = c->drain_at = c->terminal_look_at = NEVER;
    c->exited_ms = epoch_ms();
    if (!c->run) ring_mark(&c->ring, EVENT_EXIT);
    c->phase = PHASE_OVER;
    input_fail(a, c, ERR_EXECUTION_EXITED, "The command has ended.");
    if (!c->run) answer_state(a, NOTE_EXITED, 0, c, ring_next_seq(&c->ring), false);
    a->waiters_due = true;
    command_retire(a, c);
}

static bool drained(const struct command *c) { return c->out.fd < 0 && c->err.fd < 0; }

void command_reaped(struct agent *a, struct command *c, int wait_status) {
    c->tree.root = 0;
    settle_exit(c, wait_status);
    c->phase = PHASE_DRAINING;
    follow_release(a, c);
    c->deadline_at = c->kill_at = c->terminal_look_at = NEVER;
    command_output(a, c, &c->out);
    command_output(a, c, &c->err);
    if (drained(c))
        finish(a, c);
    else
        c->drain_at = monotonic_ms() + (c->terminal ? TERMINAL_DRAIN_MS : DRAIN_MS);
}

void command_signal(struct agent *a, struct command *c, int number, bool cancel) {
    (void)a;
    if (c->phase == PHASE_RUNNING) {
        c->asked_signals |= 1ULL << (number - 1);
        if (cancel && c->intent == REASON_NONE) c->intent = REASON_CANCELED;
    }
    if (number == SIGKILL)
        tree_kill(c->tree);
    else
        tree_signal(c->tree, number);
}

void command_end(struct agent *a, struct command *c, enum end_reason reason, uint64_t grace_ms) {
    (void)a;
    if (c->phase != PHASE_RUNNING) return;
    if (c->intent == REASON_NONE) c->intent = reason;
    c->deadline_at = NEVER;
    if (grace_ms == 0) {
        tree_kill(c->tree);
        return;
    }
    tree_signal(c->tree, SIGTERM);
    tree_signal(c->tree, SIGCONT); /* a stopped process cannot act on the first */
    uint64_t kill_at = monotonic_ms() + grace_ms;
    if (kill_at < c->kill_at) c->kill_at = kill_at;
}

void command_tick(struct agent *a, struct command *c, uint64_t now) {
    if (now >= c->deadline_at) command_end(a, c, REASON_DEADLINE, TERM_TO_KILL_MS);
    if (now >= c->kill_at) {
        c->kill_at = now + TERM_TO_KILL_MS; /* again, should a fork bomb have outrun it */
        tree_kill(c->tree);
    }
    if (now >= c->terminal_look_at) {
        c->terminal_look_at = NEVER;
        source_add(a, &c->out, EPOLLIN);
        command_output(a, c, &c->out);
    }
    follow_tick(a, c, now);
    if (now >= input_next(c)) input_write(a, c, now);
    if (c->phase == PHASE_DRAINING && (drained(c) || now >= c->drain_at)) finish(a, c);
}

uint64_t command_next_tick(const struct command *c) {
    if (c->phase == PHASE_DRAINING && drained(c)) return 0;
    uint64_t next = input_next(c);
    if (c->deadline_at < next) next = c->deadline_at;
    if (c->kill_at < next) next = c->kill_at;
    if (c->drain_at < next) next = c->drain_at;
    if (c->output_held_until < next) next = c->output_held_until;
    if (c->terminal_look_at < next) next = c->terminal_look_at;
    return next;
}
