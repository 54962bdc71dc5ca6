/* The guard's log, as lading/log.py writes it: to the journal if stderr is connected to it, else lines of logfmt on stderr. */
#ifndef LADING_RECORD_H
#define LADING_RECORD_H

enum priority { ERROR = 3, WARNING = 4, INFO = 6 }; /* syslog(3) */

/* Find out where records go. Records that are less important than `least` are not written. */
void open_log(enum priority least);

/* Write a record without waiting: a record for which there is no room is lost. */
void write_record(enum priority priority, const char *event, const char *message);

#endif
