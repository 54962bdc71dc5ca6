/* Source: runc, main.go, create.go, run.go, restore.go. Options are those of Go's package flag: one dash or two, the value
 * behind `=` or as the next word. */

#include "runc_call.h"

#include <stddef.h>
#include <string.h>

static const char *const with_value[] = {"log", "log-format", "root", "criu", "rootless", NULL};
static const char *const without_value[] = {"debug", "systemd-cgroup", "help", "h", "version", "v", NULL};
static const char *const making[] = {"create", "run", "restore", NULL};
static const char *const bundle[] = {"bundle", "b", NULL};

/* Return the name at which a word begins that is an option; NULL if it is none. */
static const char *option(const char *word) {
    if (word[0] != '-' || word[1] == '\0') return NULL;
    return word + (word[1] == '-' ? 2 : 1);
}

static bool is_one_of(const char *name, size_t size, const char *const *names) {
    for (; *names; names++) {
        if (strlen(*names) == size && !memcmp(*names, name, size)) return true;
    }
    return false;
}

/* Return the value of an option of `size` characters, and go on to its last word; NULL if there is none. */
static const char *value_of(const char *name, size_t size, char *const **words) {
    if (name[size] == '=') return name + size + 1;
    return (*words)[1] ? *++*words : NULL;
}

/* Find the bundle among the words of a command. */
static void read_command(char *const *words, struct runc_call *call) {
    bool found = false;
    call->bundle = "."; /* runc's default */
    for (; *words && strcmp(*words, "--"); words++) {
        const char *word = *words, *name = option(word), *value;
        if (!name) continue;
        size_t size = strcspn(name, "=");
        if (!is_one_of(name, size, bundle)) continue;
        value = value_of(name, size, &words);
        if (!value || found) {
            call->unknown = word;
            return;
        }
        call->bundle = value;
        found = true;
    }
}

struct runc_call read_runc_call(char *const *words) {
    struct runc_call call = {0};
    for (; *words; words++) {
        const char *word = *words, *name = option(word), *value;
        if (!name || !*name) { /* a command, or what is between it and the options */
            if (name) words++;
            if (*words && is_one_of(*words, strlen(*words), making)) {
                call.makes = true;
                read_command(words + 1, &call);
            }
            return call;
        }
        size_t size = strcspn(name, "=");
        if (is_one_of(name, size, without_value)) continue;
        value = is_one_of(name, size, with_value) ? value_of(name, size, &words) : NULL;
        if (!value) {
            call.unknown = word;
            return call;
        }
        if (is_one_of(name, size, (const char *const[]){"log", NULL})) call.log = value;
        if (is_one_of(name, size, (const char *const[]){"log-format", NULL})) call.json = !strcmp(value, "json");
    }
    return call;
}
