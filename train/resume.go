package train

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/optim"
	"penstock/pipe"
	"penstock/safetensors"
	"penstock/torch"
)

// Checkpoint is a checkpoint on disk that was found to be whole.
type Checkpoint struct {
	Path string
	Progress

	state state
}

// Latest finds the newest checkpoint and checks every byte of it against its hashes. The error is
// ErrNoCheckpoint if there is none and *DamagedError if it is not what was written. A damaged
// checkpoint is not skipped: remove it to resume from the one before.
func (s Store) Latest() (*Checkpoint, error) {
	if info, err := os.Stat(s.Dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("train: %s is not a directory of checkpoints but a file", s.Dir)
	}
	steps, err := s.Steps()
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("train: %w in %s", ErrNoCheckpoint, s.Dir)
	}
	step := steps[len(steps)-1]
	c := &Checkpoint{Path: s.path(step)}
	if c.state, err = readState(c.Path); err != nil {
		return nil, err
	}
	c.Progress = c.state.Progress
	if c.Step != step {
		return nil, &DamagedError{c.Path, fmt.Errorf("%s is of step %d", stateFile, c.Step)}
	}
	for _, name := range []string{modelFile, optimizerFile} {
		if err := c.state.Files[name].check(filepath.Join(c.Path, name)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s is missing: %w", name, err)
			}
			return nil, &DamagedError{c.Path, err}
		}
	}
	return c, nil
}

// Files lists the checkpoint's files, so that none of them is written to.
func (c *Checkpoint) Files() []string {
	var paths []string
	for _, name := range []string{modelFile, optimizerFile, stateFile} {
		paths = append(paths, filepath.Join(c.Path, name))
	}
	return paths
}

// Threads is the recipe's number of threads when the checkpoint was saved, or 0 if it was not
// written down.
func (c *Checkpoint) Threads() int { return c.machine().Threads }

// Kernels names the kernels in use when the checkpoint was saved, by library (torch.KernelNames);
// nil if unknown.
func (c *Checkpoint) Kernels() map[string]string { return c.machine().Kernels }

// machine is the part of the saved recipe in which a resumed run may differ.
func (c *Checkpoint) machine() (saved Recipe) {
	var m struct {
		Threads int
		Kernels map[string]string
	}
	if json.Unmarshal(c.state.Recipe, &m) != nil {
		return Recipe{} // a recipe of another shape, which Check tells of
	}
	return Recipe{Threads: m.Threads, Kernels: m.Kernels}
}

// Check returns a *MismatchError unless a run of this recipe and model, which need not be
// materialised, can go on from the checkpoint.
func (c *Checkpoint) Check(r Recipe, model nn.Module) error {
	if err := arg.Given(model, "train: Check: the model", "the run's"); err != nil {
		return err
	}
	r.Threads, r.Kernels = c.Threads(), c.Kernels()
	field, saved, given, err := difference(c.state.Recipe, r)
	if err != nil {
		return &DamagedError{c.Path, err}
	}
	if field != "" {
		return &MismatchError{c.Path, field, saved, given}
	}
	file, err := safetensors.Open(filepath.Join(c.Path, modelFile))
	if err != nil {
		return &DamagedError{c.Path, err}
	}
	defer file.Close()
	there := map[string]string{}
	for _, t := range file.Tensors() {
		there[t.Name] = fmt.Sprintf("%s%v", t.DType, t.Shape)
	}
	for _, p := range byName(nn.State(model)) {
		here := fmt.Sprintf("%s%v", torch.FileDType(p.DType()), p.Shape())
		was, ok := there[p.Name]
		if !ok {
			was = "absent"
		}
		if was != here {
			return &MismatchError{c.Path, fmt.Sprintf("tensor %q", p.Name), was, here}
		}
		delete(there, p.Name)
	}
	for _, t := range file.Tensors() {
		if was, ok := there[t.Name]; ok {
			return &MismatchError{c.Path, fmt.Sprintf("tensor %q", t.Name), was, "absent"}
		}
	}
	return nil
}

// Restore puts the checkpoint's weights and the optimizer's state on the pipe's devices, one tensor
// at a time. The model must have passed Check. The loop's Step and the loader's Start are Progress.
// After an error model and optimizer are unusable.
func (c *Checkpoint) Restore(p *pipe.Pipe, o optim.Optimizer) error {
	if err := cmp.Or(arg.Given(p, "train: Restore: the pipe", "the run's"),
		arg.Given(o, "train: Restore: the optimizer", "the run's")); err != nil {
		return err
	}
	if err := c.restoreModel(p.Model()); err != nil {
		return fmt.Errorf("train: restoring the model from %s: %w", c.Path, err)
	}
	if err := c.restoreOptimizer(p.Stages(), o); err != nil {
		return fmt.Errorf("train: restoring the optimizer from %s: %w", c.Path, err)
	}
	return nil
}

func (c *Checkpoint) restoreModel(model nn.Module) error {
	file, err := safetensors.Open(filepath.Join(c.Path, modelFile))
	if err != nil {
		return err
	}
	defer file.Close()
	for _, p := range nn.State(model) {
		t, err := file.Read(p.Name)
		if err != nil {
			return err
		}
		if err := torch.SetBytes(p.Tensor(), t.Data); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checkpoint) restoreOptimizer(stages []*pipe.Stage, o optim.Optimizer) error {
	file, err := safetensors.Open(filepath.Join(c.Path, optimizerFile))
	if err != nil {
		return err
	}
	defer file.Close()
	var saved []optim.SavedTensor
	for _, t := range file.Tensors() {
		dtype, err := torch.DTypeOfFile(t.DType)
		if err != nil {
			return fmt.Errorf("%q: %w", t.Name, err)
		}
		saved = append(saved, optim.SavedTensor{Name: t.Name, DType: dtype, Shape: t.Shape, Read: func() ([]byte, error) {
			t, err := file.Read(t.Name)
			return t.Data, err
		}})
	}
	var places []optim.Placement
	for _, s := range stages {
		places = append(places, optim.Placement{Device: s.Device, Params: s.Params()})
	}
	return o.Load(saved, c.state.Updates, places)
}
