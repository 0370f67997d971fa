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

// openStore looks at what is in --out, and whether more can be written there.
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
		j.made = append(j.made, dir)
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
	switch steps, err := j.store().Steps(); {
	case err != nil:
		return err
	case len(steps) > 0:
		return badUsage("--out %s holds the checkpoint of a run, at step %d; go on from it with --resume, or choose another --out",
			j.out, steps[len(steps)-1])
	}
	return nil
}

// removeMade removes the directories that the run has made, as far as nothing is in them.
func (j *job) removeMade() {
	for _, dir := range j.made {
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

// tellResumed says what is unusual about the checkpoint that the run goes on from.
func (j *job) tellResumed(_ context.Context, stderr io.Writer) error {
	from := j.from
	if from == nil {
		return nil
	}
	if was := from.Recipe.Chunks; was != j.config.Chunks {
		fmt.Fprintf(stderr, "the checkpoint was trained with --chunks %d, this run has --chunks %d: results differ from those of an uninterrupted run; --chunks %[1]d keeps them\n",
			was, j.config.Chunks)
	}
	if was := from.Recipe.Threads; was != 0 && was != j.config.Threads {
		fmt.Fprintf(stderr, "the checkpoint was trained with --threads %d, this run has --threads %d: the last bits of the weights may differ\n",
			was, j.config.Threads)
	}
	if was := max(from.Recipe.Replicas, 1); was != j.replicas {
		fmt.Fprintf(stderr, "the checkpoint was trained with --replicas %d, this run has --replicas %d: %s; --replicas %[1]d keeps them\n",
			was, j.replicas, otherReplicas(j.model))
	}
	now := torch.KernelNames()
	for _, library := range slices.Sorted(maps.Keys(now)) {
		if was := from.Recipe.Kernels[library]; was != "" && was != now[library] {
			fmt.Fprintf(stderr, "the checkpoint was trained with %s kernels of %s, this run has %s: the last bits of the weights may differ\n",
				was, library, now[library])
		}
	}
	return nil
}

// otherReplicas says what depends on how many replicas there are. The micro-batches of each have other rows.
func otherReplicas(model *nn.Sequential) string {
	for _, l := range model.Layers() {
		trained := slices.ContainsFunc(nn.Params(l.Layer), func(p nn.NamedParam) bool { return p.Trainable() })
		if trained && len(nn.Buffers(l.Layer)) > 0 {
			return "results differ from those of an uninterrupted run, as batch norms go by the rows of micro-batches, which are others"
		}
	}
	return "the last bits of the weights may differ, and with dropout more"
}

// beyond names the flag that ends a run before the point at which the checkpoint is, or is "".
func (j *job) beyond() string {
	switch at := j.from.Position; {
	case j.steps > 0 && j.from.Step > j.steps:
		return fmt.Sprintf("--steps %d", j.steps)
	case j.epochs > 0 && (at.Epoch > j.epochs || at.Epoch == j.epochs && at.Batch > 0):
		return fmt.Sprintf("--epochs %d", j.epochs)
	}
	return ""
}

// changed says in what the cut differs from that of the run that saved the checkpoint, or is "". Results do
// not depend on it.
func (j *job) changed() (text string) {
	if was, now := j.from.Recipe.Processes, j.processCount(); was != 0 && was != now {
		text = fmt.Sprintf(" with %s instead of %d", processes(now), was)
	}
	if was, now := j.from.Recipe.Balance, j.config.Balance; was != nil && !slices.Equal(was, now) {
		text += fmt.Sprintf("; stages of %s layers instead of %s", numbers(now), numbers(was))
	}
	return text
}

// processCount is how many processes run the training.
func (p *plan) processCount() int { return max(p.member.Size/p.here, 1) }

// processes is a number of processes in words.
func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
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

func (j *job) store() train.Store { return train.Store{Dir: j.out, Keep: j.newest, Group: j.group} }

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
