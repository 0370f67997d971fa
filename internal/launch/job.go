// Package launch starts the processes of one job and ends them together. It knows nothing of what
// they do. Linux only: a process ends with the one that started it by PR_SET_PDEATHSIG.
package launch

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Job is a number of processes that run one program together. Zero values of durations are
// defaults.
type Job struct {
	Processes []Process
	// Stdout gets the standard output of the first process as it is. If it is an *os.File the
	// process has the file itself.
	Stdout io.Writer
	// Stderr gets, line by line, the standard error of all processes and the standard output of all
	// but the first. Each line begins with the rank of its process, as in "[2] ".
	Stderr io.Writer
	// Abandon ends the job, when it is closed, as a failure of a process does. Nil: nothing does.
	Abandon <-chan struct{}
	// Settle is how long the others may go on after one has failed, to say themselves what they
	// miss. 0 is 2 seconds.
	Settle time.Duration
	// Grace is how long they may take to end after SIGTERM, before SIGKILL. 0 is 10 seconds.
	Grace time.Duration
}

// Process is one process of a Job.
type Process struct {
	Rank int      // in front of its lines
	Path string   // of the program
	Args []string // without the program's name
	Env  []string // all of the environment
}

// Failure is the end of the process that failed first.
type Failure struct {
	Rank   int
	Code   int            // its exit code; -1 if a signal ended it
	Signal syscall.Signal // that ended it, or 0
	After  time.Duration  // from its start
	Err    error          // why it could not be started or waited for; nil if it ran
}

func (f *Failure) Error() string {
	switch {
	case f.Err != nil:
		return fmt.Sprintf("launch: rank %d: %v", f.Rank, f.Err)
	case f.Signal != 0:
		return fmt.Sprintf("launch: rank %d was ended by signal %d (%v) after %v", f.Rank, int(f.Signal), f.Signal, f.After.Round(time.Millisecond))
	}
	return fmt.Sprintf("launch: rank %d exited with %d after %v", f.Rank, f.Code, f.After.Round(time.Millisecond))
}

func (f *Failure) Unwrap() error { return f.Err }

// ExitCode is the exit code of a launcher whose job has ended so.
func (f *Failure) ExitCode() int { return f.Code }

// ended is the end of a process.
type ended struct {
	index int
	err   error // of exec.Cmd.Wait
}

// Run starts the processes and returns when all have ended. Its error is nil if all exited with 0,
// or else the *Failure of the first that did not, or that a signal ended. After a failure the others have
// Settle to end by themselves, then get SIGTERM, and SIGKILL after Grace. When ctx ends all get SIGTERM, and Run waits for as long as they take.
//
// Processes are in process groups of their own: Ctrl-C on a terminal is a signal to the caller
// alone. If the caller dies the system kills them.
func (j Job) Run(ctx context.Context) error {
	// PR_SET_PDEATHSIG is about the thread that has started a process, so this one has to live until
	// all have ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	log := &lineLog{to: j.Stderr}
	started := time.Now()
	var failure *Failure
	var running []*exec.Cmd
	ends := make(chan ended)
	for i, p := range j.Processes {
		c := j.command(i, log.named(p.Rank))
		if err := c.Start(); err != nil {
			failure = &Failure{Rank: p.Rank, Err: err}
			break
		}
		running = append(running, c)
		go func() { ends <- ended{i, c.Wait()} }()
	}

	var deadline <-chan time.Time // of what comes next after a failure
	signalled := failure != nil   // by this launcher
	if signalled {
		signal(running, syscall.SIGKILL)
	}
	interrupted, abandon := ctx.Done(), j.Abandon
	next := syscall.SIGTERM
	for left := len(running); left > 0; {
		select {
		case e := <-ends:
			left--
			rank := j.Processes[e.index].Rank
			log.named(rank).flush()
			if e.err == nil {
				continue
			}
			f := failed(rank, running[e.index], e.err, time.Since(started))
			if failure != nil {
				// Who was killed is why others exit, which may be seen first, as is who was refused.
				if f.Signal != 0 && failure.Signal == 0 && !signalled || f.Code == Usage && failure.Code > 0 && failure.Code != Usage {
					failure = f
				}
				continue
			}
			failure = f
			if interrupted != nil { // otherwise all are ending already
				deadline = time.After(orDefault(j.Settle, 2*time.Second))
			}
		case <-interrupted:
			interrupted, signalled = nil, true
			signal(running, syscall.SIGTERM)
		case <-abandon:
			if abandon = nil; interrupted != nil && failure == nil {
				deadline = time.After(orDefault(j.Settle, 2*time.Second))
			}
		case <-deadline:
			signalled = true
			signal(running, next)
			signal(running, syscall.SIGCONT) // one that is stopped would not see SIGTERM
			deadline, next = time.After(orDefault(j.Grace, 10*time.Second)), syscall.SIGKILL
		}
	}
	if failure != nil {
		return failure
	}
	return nil
}

// command makes the process with an index.
func (j Job) command(i int, log io.Writer) *exec.Cmd {
	p := j.Processes[i]
	c := exec.Command(p.Path, p.Args...)
	c.Env, c.Stdout, c.Stderr = p.Env, log, log
	if i == 0 {
		c.Stdout = j.Stdout
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.WaitDelay = time.Second // for whoever else has its standard output or error
	return c
}

// failed describes the end of a process that has not exited with 0.
func failed(rank int, c *exec.Cmd, err error, after time.Duration) *Failure {
	f := &Failure{Rank: rank, Code: c.ProcessState.ExitCode(), After: after}
	if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		f.Signal = status.Signal()
	}
	if f.Code == 0 { // it did its work, but what it wrote could not be passed on
		f.Err = err
	}
	return f
}

// signal sends a signal to those that have not ended.
func signal(processes []*exec.Cmd, s syscall.Signal) {
	for _, c := range processes {
		_ = c.Process.Signal(s) // which fails for those that have
	}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
