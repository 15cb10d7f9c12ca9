#include "agent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"

enum { END_OF_TRANSMISSION = 4 }; /* what a terminal takes as the end of input */

static void pop_job(struct agent *a, struct command *c) {
    struct stdin_job *job = c->jobs;
    c->jobs = job->next;
    c->jobs_bytes -= job->len;
    a->jobs_bytes -= job->len;
    free(job);
}

static void close_input(struct command *c) {
    source_close(&c->in);
    c->in_armed = false;
}

void input_fail(struct agent *a, struct command *c, enum error_code code, const char *sentence) {
    while (c->jobs) {
        if (!c->jobs->answered) answer_error(a, c->jobs->request, code, sentence);
        pop_job(a, c);
    }
}

void input_orphan(struct command *c) {
    for (struct stdin_job *job = c->jobs; job; job = job->next) job->answered = true;
}

uint64_t input_next(const struct command *c) { return c->jobs ? c->jobs->until : NEVER; }

static void arm(struct agent *a, struct command *c, bool wanted) {
    if (wanted == c->in_armed) return;
    c->in_armed = wanted;
    if (wanted)
        source_add(a, &c->in, EPOLLOUT);
    else
        epoll_ctl(a->epoll, EPOLL_CTL_DEL, c->in.fd, NULL);
}

/* Returns false while the pipe is full. */
static bool write_job(struct command *c, struct stdin_job *job) {
    while (job->done < job->len) {
        ssize_t put = write(c->in.fd, job->data + job->done, job->len - job->done);
        if (put > 0) {
            job->done += (size_t)put;
        } else if (errno == EAGAIN) {
            return false;
        } else if (errno != EINTR) {
            close_input(c); /* nobody reads it any more */
            return true;
        }
    }
    return true;
}

void input_write(struct agent *a, struct command *c, uint64_t now) {
    while (c->jobs) {
        struct stdin_job *job = c->jobs;
        if (c->in.fd < 0) {
            input_fail(a, c, ERR_INVALID_REQUEST, "Standard input is closed.");
            return;
        }
        if (!write_job(c, job)) {
            if (now < job->until) {
                arm(a, c, true);
                return;
            }
            if (!job->answered) answer_error(a, job->request, ERR_UNKNOWN, "The command does not read its standard input.");
            pop_job(a, c);
            continue;
        }
        if (c->in.fd < 0) continue;
        if (job->eof && !c->terminal) close_input(c);
        if (!job->answered) answer_ok(a, job->request);
        pop_job(a, c);
    }
    if (c->in.fd >= 0) arm(a, c, false);
}

void input_request(struct agent *a, struct command *c, const struct request *r) {
    size_t len = r->data.len + (size_t)(r->eof && c->terminal);
    if (c->in.fd < 0) {
        answer_error(a, r->id, ERR_INVALID_REQUEST, "Standard input is closed.");
        return;
    }
    if (c->jobs_bytes + len > MAX_STDIN_BYTES || a->jobs_bytes + len > MAX_STDIN_BYTES_ALL) {
        answer_error(a, r->id, ERR_UNKNOWN, "Too much input waits already.");
        return;
    }
    struct stdin_job *job = must_alloc(sizeof *job + len);
    job->request = r->id;
    job->eof = r->eof;
    job->until = monotonic_ms() + STDIN_LIMIT_MS;
    job->len = len;
    if (r->data.len) memcpy(job->data, r->data.data, r->data.len);
    if (len > r->data.len) job->data[len - 1] = END_OF_TRANSMISSION;
    struct stdin_job **last = &c->jobs;
    while (*last) last = &(*last)->next;
    *last = job;
    c->jobs_bytes += len;
    a->jobs_bytes += len;
    input_write(a, c, monotonic_ms());
}
