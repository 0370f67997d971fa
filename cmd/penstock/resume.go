package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"penstock.example/internal/system"
	"penstock.example/train"
)

func (j *job) store() train.Store { return train.Store{Dir: j.out, Keep: j.newest, Group: j.group} }

// openStore opens --out: it finds the checkpoint to resume, and checks that more can be written.
func (j *job) openStore(context.Context, io.Writer) (err error) {
	if j.out == "" {
		return nil
	}
	store := j.store()
	// It is locked before anything is read: another run might remove the checkpoint.
	j.unlock, err = store.Lock()
	switch {
	case errors.Is(err, train.ErrLocked):
		return fmt.Errorf("another run uses --out %s; wait for its end, or choose another --out", j.out)
	case err != nil:
		return wrongInput(err)
	}
	if j.resume || j.autoresume || j.member.Restart > 0 { // by a launcher, with the command line of the start
		err := j.openCheckpoint()
		switch none := errors.Is(err, train.ErrNoCheckpoint); {
		case none && j.resume:
			return wrongInput(err)
		case !none:
			return err
		}
	}
	steps, err := store.Steps()
	if err == nil && len(steps) > 0 {
		err = badUsage("--out %s holds the checkpoint of a run, at step %d; go on from it with --resume, or "+
			"choose another --out", j.out, steps[len(steps)-1])
	}
	return err
}

// openCheckpoint opens the checkpoint to resume.
func (j *job) openCheckpoint() error {
	from, err := j.store().Latest()
	var damaged *train.DamagedError
	if errors.As(err, &damaged) {
		return wrongInput(err)
	}
	if err != nil {
		return err
	}
	r := j.recipe
	if j.planned == auto && j.world.Chunks == 0 { // still to be planned
		r.Chunks = from.Recipe.Chunks
	}
	if err := from.Check(r, j.model); err != nil {
		return wrongInput(err)
	}
	j.from, j.loop.Step, j.loop.Best, j.loop.Scaler = from, from.Step, from.Best, from.Scaler
	return nil
}

// save saves the run in --out and returns the path of the checkpoint; "" without --out.
func (j *job) save() (path string, err error) {
	if j.out == "" {
		return "", nil
	}
	// First, so that each saved step has its line on disk. If the disk is full for lines the
	// weights are saved all the same.
	unwritten := j.measures.sync()
	path, err = j.store().Save(j.loop.Progress(), j.recipe, j.model, j.loop.Optimizer)
	j.unsaved = err != nil
	return path, cmp.Or(err, unwritten)
}

// tellResumed prints why the results of a resumed run may differ from an uninterrupted one.
func (j *job) tellResumed(stderr io.Writer) {
	from := j.from
	if from == nil {
		return
	}
	const bits = "the last bits of the weights may differ"
	differs := func(flag string, was, now int, effect string) {
		if was != 0 && was != now {
			fmt.Fprintf(stderr, "the checkpoint was trained with %s %d, this run has %[1]s %[3]d: %s; %[1]s "+
				"%[2]d keeps them\n", flag, was, now, effect)
		}
	}
	differs("--chunks", from.Recipe.Chunks, j.config.Chunks, "results differ from those of an "+
		"uninterrupted run")
	differs("--threads", from.Recipe.Threads, j.config.Threads, bits)
	differs("--replicas", max(from.Recipe.Replicas, 1), j.replicas, bits+
		", and more with batch norm or dropout")
	now := system.KernelNames()
	for _, library := range slices.Sorted(maps.Keys(now)) {
		if was := from.Recipe.Kernels[library]; was != "" && was != now[library] {
			fmt.Fprintf(stderr, "the checkpoint was trained with %s kernels of %s, this run has %s: %s\n",
				was, library, now[library], bits)
		}
	}
}

// tellStart prints where the run goes on, and its differences from the run that saved the checkpoint.
func (j *job) tellStart(stderr io.Writer) error {
	at, end := j.from.Position, ""
	switch {
	case j.steps > 0 && j.from.Step > j.steps:
		end = fmt.Sprintf("--steps %d", j.steps)
	case j.epochs > 0 && (at.Epoch > j.epochs || at.Epoch == j.epochs && at.Batch > 0):
		end = fmt.Sprintf("--epochs %d", j.epochs)
	}
	if end != "" {
		fmt.Fprintf(stderr, "the checkpoint is at step %d, beyond %s: nothing to do\n", j.from.Step, end)
		return nil
	}
	text := "going on from " + j.from.Path
	if was, now := j.from.Recipe.Processes, j.processCount(); was != 0 && was != now {
		text += fmt.Sprintf(" with %s instead of %d", counted(now, "process"), was)
	}
	if was, now := j.from.Recipe.Balance, j.config.Balance; was != nil && !slices.Equal(was, now) {
		text += fmt.Sprintf("; stages of %s layers instead of %s", numbers(now), numbers(was))
	}
	changes, err := j.from.Changes(j.recipe)
	for _, c := range changes {
		text += fmt.Sprintf("; %s %s instead of %s", flagOf(c.Field), c.Given, c.Saved)
	}
	fmt.Fprintln(stderr, text)
	return err
}
