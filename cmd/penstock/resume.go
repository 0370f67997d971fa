package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
	"penstock.example/train"
)

func (j *job) store() train.Store { return train.Store{Dir: j.out, Keep: j.newest, Group: j.group} }

// openStore finds in --out what to go on from, and whether more can be written there.
func (j *job) openStore(context.Context, io.Writer) error {
	if j.out == "" {
		return nil
	}
	if j.resume {
		err := j.openCheckpoint()
		if errors.Is(err, train.ErrNoCheckpoint) {
			err = wrongInput(err)
		}
		return err
	}
	for dir := filepath.Clean(j.out); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		j.createdDirs = append(j.createdDirs, dir)
	}
	if err := j.store().Prepare(); err != nil {
		return err
	}
	if j.autoresume || j.member.Restart > 0 { // by a launcher, with the command line of the start
		if err := j.openCheckpoint(); !errors.Is(err, train.ErrNoCheckpoint) {
			return err
		}
	}
	if err := j.lock(); err != nil {
		return err
	}
	steps, err := j.store().Steps()
	if err == nil && len(steps) > 0 {
		err = badUsage("--out %s holds the checkpoint of a run, at step %d; go on from it with --resume, or "+
			"choose another --out",
			j.out, steps[len(steps)-1])
	}
	return err
}

// removeCreated removes the directories that the run has made, as far as nothing is in them.
func (j *job) removeCreated() {
	for _, dir := range j.createdDirs {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// openCheckpoint finds what to go on from.
func (j *job) openCheckpoint() error {
	// Locked before anything is read: another run may be about to remove what would be found. Where
	// there is no directory, Latest says so. Of the processes of a group some may have to make theirs.
	if j.group != nil {
		if err := j.store().Prepare(); err != nil {
			return err
		}
	}
	if info, err := os.Stat(j.out); err == nil && info.IsDir() {
		if err := j.lock(); err != nil {
			return err
		}
	}
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
	return j.store().Prepare()
}

// lock keeps other runs out of --out until the job is closed.
func (j *job) lock() (err error) {
	if j.unlock != nil {
		return nil
	}
	j.unlock, err = j.store().Lock()
	if errors.Is(err, train.ErrLocked) {
		return fmt.Errorf("another run uses --out %s; wait for its end, or choose another --out", j.out)
	}
	return err
}

// save saves where the run stands, if there is an --out, and returns the checkpoint's path.
func (j *job) save() (path string, err error) {
	if j.out == "" {
		return "", nil
	}
	// First, so that no checkpoint is of a step whose line is not on disk. If the disk takes no lines the
	// weights are saved all the same.
	unwritten := j.measures.sync()
	path, err = j.store().Save(j.loop.Progress(), j.recipe, j.model, j.loop.Optimizer)
	j.unsaved = err != nil
	return path, cmp.Or(err, unwritten)
}

// tellResumed says why the results of a resumed run may differ from those of one that was not interrupted.
func (j *job) tellResumed(stderr io.Writer) {
	from := j.from
	if from == nil {
		return
	}
	const bits = "the last bits of the weights may differ"
	differs := func(flag string, was, now int, effect string) {
		if was != 0 && was != now {
			fmt.Fprintf(stderr, "the checkpoint was trained with %s %d, this run has %[1]s %[3]d: %s; %[1]s "+
				"%[2]d keeps them\n",
				flag, was, now, effect)
		}
	}
	differs("--chunks", from.Recipe.Chunks, j.config.Chunks, "results differ from those of an uninterrupted run")
	differs("--threads", from.Recipe.Threads, j.config.Threads, bits)
	differs("--replicas", max(from.Recipe.Replicas, 1), j.replicas, otherReplicas(j.model))
	now := torch.KernelNames()
	for _, library := range slices.Sorted(maps.Keys(now)) {
		if was := from.Recipe.Kernels[library]; was != "" && was != now[library] {
			fmt.Fprintf(stderr, "the checkpoint was trained with %s kernels of %s, this run has %s: %s\n", was,
				library, now[library], bits)
		}
	}
}

// otherReplicas says what depends on how many replicas there are. The micro-batches of each have other rows.
func otherReplicas(model *nn.Sequential) string {
	for _, l := range model.Layers() {
		trained := slices.ContainsFunc(nn.Params(l.Layer), func(p nn.NamedParam) bool { return p.Trainable() })
		if trained && len(nn.Buffers(l.Layer)) > 0 {
			return "results differ from those of an uninterrupted run, as batch norms go by the rows of " +
				"micro-batches, which are others"
		}
	}
	return "the last bits of the weights may differ, and with dropout more"
}

// tellStart says where the run goes on, and in what it differs from the run that saved the checkpoint.
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
		text += fmt.Sprintf("; %s %s instead of %s", flagOf(c.Field), orNone(c.Given), orNone(c.Saved))
	}
	fmt.Fprintln(stderr, text)
	return err
}

// orNone is a number of steps, or none.
func orNone(text string) string {
	if text == "0" || text == "absent" {
		return "none"
	}
	return text
}
