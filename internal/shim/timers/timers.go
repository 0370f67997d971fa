// Package timers lets the timers of a process end up to a millisecond late, where the system can
// (Linux), from before Go's runtime starts.
//
// The runtime's monitor sleeps for 20 microseconds at a time while a call into C lasts, as nearly all
// of the time of training does. On a virtual machine these wake-ups took 7 % of the processor time of
// a step. The kernel puts a thread's timers together that end within its slack, 50 microseconds by
// default. Threads inherit it, and the monitor starts before any code in Go.
package timers

/*
#ifdef __linux__
#include <sys/prctl.h>
__attribute__((constructor)) static void set_slack(void) { prctl(PR_SET_TIMERSLACK, 1000000UL, 0UL, 0UL, 0UL); }
#endif
*/
import "C"
