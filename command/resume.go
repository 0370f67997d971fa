package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"penstock.example/internal/system"
	"penstock.example/train"
)

func (j *job) store() train.Store { return train.Store{Dir: j.out, Keep: j.newest, Group: j.group} }

func (j *job) openStore(context.Context, io.Writer) (err error) {
	if j.out == "" {
		return nil
	}
	store := j.store()
	j.unlock, err = store.Lock() // another run might remove the checkpoint that is read
	switch {
	case errors.Is(err, train.ErrLocked):
		return fmt.Errorf("another run uses --out %s; wait for its end, or choose another --out", j.out)
	case err != nil:
		return wrongInput(err)
	}
	if j.resume || j.autoresume || j.member.Restart > 0 { // a launcher restarts with the first command line
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

func (j *job) openCheckpoint() error {
	from, err := j.store().Latest()
	if err != nil {
		return err
	}
	r := j.recipe
	if j.planned == auto && j.world.Chunks == 0 { // the plan will decide it
		r.Chunks = from.Recipe.Chunks
	}
	if j.changedData && r.Data.Name == from.Recipe.Data.Name {
		r.Data = from.Recipe.Data
	}
	if err := from.Check(r, j.model); err != nil {
		return wrongInput(err)
	}
	j.from, j.loop.Step, j.loop.Best, j.loop.Scaler = from, from.Step, from.Best, from.Scaler
	j.loop.Plateau, j.saved = cmp.Or(from.Plateau, j.loop.Plateau), from.Step
	return nil
}

// save saves the run in --out and returns the path of the checkpoint; "" without --out.
func (j *job) save() (path string, err error) {
	if j.out == "" {
		return "", nil
	}
	// Metrics come first, so that each saved step has its line on disk.
	unwritten := j.writers.Sync()
	path, err = j.store().Save(j.loop.Progress(), j.recipe, j.model, j.loop.Optimizer)
	if j.unsaved = err != nil; !j.unsaved {
		j.saved = j.loop.Step
	}
	return path, cmp.Or(err, unwritten)
}

func (j *job) tellStart(stderr io.Writer) error {
	text, was, now := "going on from "+j.from.Path, j.from.Recipe, j.recipe
	if was.Chunks != now.Chunks { // by --plan auto
		text += fmt.Sprintf("; --chunks %d instead of %d, so results differ", now.Chunks, was.Chunks)
	}
	before, after := settingsOf(was.Data), settingsOf(now.Data)
	if before["fingerprint"] != after["fingerprint"] {
		text += fmt.Sprintf("; other data: %v samples instead of %v", after["samples"], before["samples"])
	}
	now.Kernels = system.KernelNames()
	changes, err := j.from.Changes(now)
	for _, c := range changes {
		name := "--" + strings.ReplaceAll(c.Field[strings.LastIndexByte(c.Field, '.')+1:], "_", "-")
		if library, kernels := strings.CutPrefix(c.Field, "kernels."); kernels {
			name = "kernels of " + library
		}
		text += fmt.Sprintf("; %s %s instead of %s", name, strings.Trim(c.Given, `[]"`), strings.Trim(c.Saved,
			`[]"`))
		if name == "--threads" || name == "--replicas" || name[0] != '-' {
			text += ", so the last bits differ"
		}
	}
	fmt.Fprintln(stderr, text)
	return err
}
