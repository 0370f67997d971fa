package torch

import (
	"syscall"
	"time"
	"unsafe"
)

// ThreadTime returns the processor time that the calling thread has used so far, in user and system
// mode (clock_gettime with CLOCK_THREAD_CPUTIME_ID). Time in which the thread waits does not count,
// nor does the work of other threads. Only differences between calls on one thread are meaningful:
// the goroutine must be locked to it.
func ThreadTime() time.Duration {
	const threadClock = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	if _, _, failure := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&t)), 0); failure != 0 {
		panic("torch: reading the thread's clock: " + failure.Error()) // Linux has had it since 2.6
	}
	return time.Duration(t.Nano())
}
