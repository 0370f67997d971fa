// Package launch starts the processes of one job on this machine, ends them together, and starts them
// again after a failure. Linux only: PR_SET_PDEATHSIG ends a process when its launcher dies.
package launch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Job is a number of processes of one program that work together. The number of a process is its rank.
type Job struct {
	Path string
	Args []string // without the program's name
	// Env is the environment of each process. Unless it has GOTRACEBACK, the process gets
	// GOTRACEBACK=crash: a Go program that crashes then ends by a signal, so that Run can tell the
	// crash from the exits that it causes.
	Env [][]string
	// Stdout gets the standard output of rank 0 unchanged. If it is an *os.File, the process gets the
	// file itself.
	Stdout io.Writer
	// Stderr gets the standard error of all processes and the standard output of ranks above 0, line by
	// line. Each line begins with the rank, as in "[2] ".
	Stderr io.Writer
	// Restarts is how often the job is started again after a failure. OnRestart is called before each
	// restart, with its number, from 1.
	Restarts  int
	OnRestart func(restart int, after *Failure)
	// Settle is how long the other processes may run after a failure, to report their errors; 0 is 2 seconds.
	Settle time.Duration
	// Grace is the time between SIGTERM and SIGKILL; 0 is 10 seconds.
	Grace time.Duration
}

// Usage is the exit code of a process that refuses its command line or input: EX_USAGE of sysexits.h.
// Its job is not started again. A Go program that crashes exits with 2.
const Usage = 64

// Failure says how the process that failed first has ended.
type Failure struct {
	Rank   int
	Code   int            // the exit code; -1 after a signal
	Signal syscall.Signal // the signal that ended the process, or 0
	After  time.Duration  // how long the process has run
	Err    error          // why the process could not be started or waited for; or nil
}

func (f *Failure) Error() string {
	after := f.After.Round(time.Millisecond)
	switch {
	case f.Err != nil:
		return fmt.Sprintf("launch: rank %d: %v", f.Rank, f.Err)
	case f.Signal != 0:
		return fmt.Sprintf("launch: rank %d was ended by signal %d (%v) after %v", f.Rank, int(f.Signal),
			f.Signal, after)
	}
	return fmt.Sprintf("launch: rank %d exited with %d after %v", f.Rank, f.Code, after)
}

func (f *Failure) Unwrap() error { return f.Err }

// Run starts the processes, again after each failure, until all exit with 0, no restart is left, a process
// exits with Usage, or ctx is done. Its error is nil or wraps a *Failure.
//
// When a process does not exit with 0, the others have the time Settle to end by themselves. After that they
// get SIGTERM, and SIGKILL after Grace. When ctx is done all get SIGTERM, and Run waits until they end.
//
// Each process has a process group of its own: Ctrl-C on a terminal signals the caller alone. If the caller
// dies the system kills the processes.
func (j Job) Run(ctx context.Context) error {
	for restart := 0; ; restart++ {
		switch failure := j.runOnce(ctx, restart); {
		case failure == nil:
			return nil
		case ctx.Err() != nil || restart == j.Restarts:
			return failure
		case failure.Code == Usage:
			return fmt.Errorf("%w; not started again: its input would be refused again", failure)
		default:
			j.OnRestart(restart+1, failure)
		}
	}
}

// runOnce starts the processes and waits until all have ended.
func (j Job) runOnce(ctx context.Context, restart int) (failure *Failure) {
	// Pdeathsig kills a process when the thread that started it ends. So the goroutine keeps this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var mu sync.Mutex
	started := time.Now()
	var running []*exec.Cmd
	exits := make(chan *Failure)
	for rank := range j.Env {
		log := &lineWriter{mu: &mu, to: j.Stderr, prefix: fmt.Sprintf("[%d] ", rank)}
		c := j.command(rank, restart, log)
		if err := c.Start(); err != nil {
			failure = &Failure{Rank: rank, Err: err}
			break
		}
		running = append(running, c)
		go func() {
			err := c.Wait()
			log.flush()
			exits <- failureOf(rank, c, err, time.Since(started), log.signal)
		}()
	}

	var deadline <-chan time.Time // of the next signal
	signalled := failure != nil   // the launcher has sent a signal
	if signalled {
		signal(running, syscall.SIGKILL)
	}
	interrupted, next := ctx.Done(), syscall.SIGTERM
	for left := len(running); left > 0; {
		select {
		case f := <-exits:
			left--
			switch {
			case f == nil:
			case failure == nil:
				failure = f
				if interrupted != nil { // otherwise all are ending already
					deadline = time.After(cmp.Or(j.Settle, 2*time.Second))
				}
			case f.Signal != 0 && failure.Signal == 0 && !signalled,
				f.Code == Usage && failure.Code > 0 && failure.Code != Usage:
				// this is the cause of the first exit that was seen
				failure = f
			}
		case <-interrupted:
			interrupted, signalled = nil, true
			signal(running, syscall.SIGTERM)
		case <-deadline:
			signalled = true
			signal(running, next)
			signal(running, syscall.SIGCONT) // a stopped process would not see SIGTERM
			deadline, next = time.After(cmp.Or(j.Grace, 10*time.Second)), syscall.SIGKILL
		}
	}
	return failure
}

func (j Job) command(rank, restart int, log io.Writer) *exec.Cmd {
	c := exec.Command(j.Path, j.Args...)
	// Of several values of a variable the last counts.
	c.Env = slices.Concat([]string{"GOTRACEBACK=crash"}, j.Env[rank],
		[]string{fmt.Sprint("TORCHELASTIC_RESTART_COUNT=", restart)})
	c.Stdout, c.Stderr = log, log
	if rank == 0 {
		c.Stdout = j.Stdout
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.WaitDelay = time.Second // for other holders of its standard output or error
	return c
}

// failureOf describes the end of a process. err is the result of Wait; without an error it returns
// nil. named is the signal that crashed a Go program, by its own words: the program then ends
// itself by SIGABRT.
func failureOf(rank int, c *exec.Cmd, err error, after time.Duration, named syscall.Signal) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Rank: rank, Code: c.ProcessState.ExitCode(), After: after}
	if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		f.Signal = cmp.Or(named, status.Signal())
	}
	if f.Code == 0 { // the output could not be passed on
		f.Err = err
	}
	return f
}

func signal(processes []*exec.Cmd, s syscall.Signal) {
	for _, c := range processes {
		_ = c.Process.Signal(s) // an error means that it has ended
	}
}
