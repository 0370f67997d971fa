package train

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/group"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// Checkpoint is a checkpoint on disk.
type Checkpoint struct {
	Path string
	Progress
	// Recipe is how the checkpoint was trained. The settings of its Choices are decoded JSON: maps,
	// lists, text, and numbers as json.Number.
	Recipe Recipe

	state state
	group *group.Group
}

// Latest finds the newest checkpoint and checks every byte of it against its hashes. The error is
// ErrNoCheckpoint if there is none, and *DamagedError if it is damaged. A damaged
// checkpoint is not skipped: remove it to resume from the one before. In a group Latest is
// collective, and the members check a part of the files each.
func (s Store) Latest() (*Checkpoint, error) {
	ctx := context.Background()
	newest, err := group.FromFirst(ctx, s.Group, "train: newest checkpoint", func() (int64, error) {
		if info, err := os.Stat(s.Dir); err == nil && !info.IsDir() {
			return 0, fmt.Errorf("train: %s is not a directory of checkpoints but a file", s.Dir)
		}
		steps, err := s.Steps()
		return slices.Max(append(steps, -1)), err
	})
	if err != nil {
		return nil, err
	}
	if newest < 0 {
		return nil, fmt.Errorf("train: %w in %s", ErrNoCheckpoint, s.Dir)
	}
	c := &Checkpoint{Path: s.Path(newest), group: s.Group}
	c.state, err = group.FromFirst(ctx, s.Group, "train: index of the checkpoint", func() (state, error) {
		st, err := readState(c.Path)
		if err == nil && st.Step != newest {
			err = &DamagedError{c.Path, fmt.Errorf("%s is of step %d", stateFile, st.Step)}
		}
		return st, err
	})
	if err != nil {
		return nil, err
	}
	var mine []string
	for i, name := range c.state.names() {
		if i%s.Group.Size() == s.Group.Rank() {
			mine = append(mine, name)
		}
	}
	problem := cmp.Or(c.damageOf(mine)...)
	_, err = group.Meet(ctx, s.Group, "train: files checked", 0, problem)
	if another := (*group.MemberError)(nil); problem != nil || errors.As(err, &another) {
		err = &DamagedError{c.Path, err}
	}
	if err != nil {
		return nil, err
	}
	return c, c.fill()
}

// fill fills the fields that the index has.
func (c *Checkpoint) fill() error {
	c.Progress = c.state.Progress
	decoder := json.NewDecoder(bytes.NewReader(c.state.Recipe))
	decoder.UseNumber()
	if err := decoder.Decode(&c.Recipe); err != nil {
		return &DamagedError{c.Path, fmt.Errorf("the recipe: %w", err)}
	}
	return nil
}

// Files lists the checkpoint's files, so that none of them is written to.
func (c *Checkpoint) Files() []string {
	var paths []string
	for _, name := range append(c.state.names(), stateFile) {
		paths = append(paths, filepath.Join(c.Path, name))
	}
	return paths
}

// Changes are the settings in which a run of this recipe goes on otherwise than the checkpoint was
// trained, as it may: see Recipe.
func (c *Checkpoint) Changes(r Recipe) ([]Change, error) {
	_, changes, err := compare(c.state.Recipe, r)
	if err != nil {
		return nil, &DamagedError{c.Path, err}
	}
	return slices.DeleteFunc(changes, func(d Change) bool {
		return d.Saved == "absent" && slices.Contains([]string{"steps", "epochs", "save_every"},
			d.Field) // it was written before these were
	}), nil
}

// Check returns a *MismatchError unless a run of this recipe and model, which need not be
// materialised, can go on from the checkpoint.
func (c *Checkpoint) Check(r Recipe, model nn.Module) error {
	if was, is := c.Recipe.Samples, r.Samples; was != nil && is != nil && is.OtherTokenizer(*was) {
		return &MismatchError{c.Path, "the SHA-256 of the tokenizer", was.Tokenizer, is.Tokenizer}
	}
	wrong, _, err := compare(c.state.Recipe, r)
	if err != nil {
		return &DamagedError{c.Path, err}
	}
	if wrong != nil {
		return &MismatchError{c.Path, wrong.Field, wrong.Saved, wrong.Given}
	}
	return c.checkTensors(model)
}

// checkTensors returns a *MismatchError unless the checkpoint has the model's tensors, and no others.
func (c *Checkpoint) checkTensors(model nn.Module) error {
	saved := map[string]string{}
	for _, name := range c.state.of(modelKind) {
		for tensor, entry := range c.state.Files[name].Tensors {
			saved[tensor] = entry.String()
		}
	}
	for _, p := range byName(nn.State(model)) {
		given := fmt.Sprintf("%s%v", torch.FileDType(p.DType()), p.Shape())
		if was := cmp.Or(saved[p.Name], "absent"); was != given {
			return &MismatchError{c.Path, fmt.Sprintf("tensor %q", p.Name), was, given}
		}
		delete(saved, p.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(saved)) {
		return &MismatchError{c.Path, fmt.Sprintf("tensor %q", name), saved[name], "absent"}
	}
	return nil
}

// Restore puts the checkpoint's weights and the optimizer's state on the pipe's devices, one tensor
// at a time. The model must have passed Check. The loop's Step and the loader's Start are Progress.
// After an error model and optimizer are unusable.
//
// In a group Restore is collective. Each member reads what exists in its process, and nothing else.
func (c *Checkpoint) Restore(p *pipe.Pipe, o optim.Optimizer) error {
	var places []optim.Placement
	for _, s := range p.Stages() {
		place := optim.Placement{Device: s.Device}
		for _, q := range s.State() {
			if !q.IsBuffer() { // also one that is frozen now: it may have been trained, and be trained again
				place.Params = append(place.Params, q)
			}
		}
		places = append(places, place)
	}
	return c.restore(p.Model(), places, o)
}

// RestoreModel puts the checkpoint's weights on the pipe's devices, one tensor at a time, for a pipe that
// evaluates and does not train. Every byte of the model's files is checked first. The error is
// *DamagedError if a file is damaged, and *MismatchError if the model is another than the
// checkpoint's. After an error while tensors are read the model is unusable. In a group it is collective.
func (c *Checkpoint) RestoreModel(p *pipe.Pipe) error {
	err := cmp.Or(c.checkTensors(p.Model()), c.checkModel())
	if _, err := group.Meet(context.Background(), c.group, "train: model checked", 0, err); err != nil {
		return err
	}
	return c.restore(p.Model(), nil, nil)
}

// checkModel returns a *DamagedError unless the model's files are as they were written.
func (c *Checkpoint) checkModel() error {
	if damage := c.damageOf(c.state.of(modelKind)); damage != nil {
		return &DamagedError{c.Path, damage[0]}
	}
	return nil
}

// damageOf checks every byte of files.
func (c *Checkpoint) damageOf(names []string) (damage []error) {
	for _, name := range names {
		if err := c.state.Files[name].check(filepath.Join(c.Path, name)); err != nil {
			damage = append(damage, err)
		}
	}
	return damage
}

// restore restores the model, and the optimizer unless it is nil.
func (c *Checkpoint) restore(model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	r := &reader{c, map[string]*safetensors.File{}}
	err := r.readModel(model)
	if err == nil && o != nil {
		err = r.readOptimizer(model, places, o)
	}
	for _, f := range r.files {
		f.Close() // it was only read
	}
	if err != nil {
		err = fmt.Errorf("train: restoring from %s: %w", c.Path, err)
	}
	_, err = group.Meet(context.Background(), c.group, "train: checkpoint restored", 0, err)
	return err
}

// reader reads tensors of a checkpoint.
type reader struct {
	*Checkpoint
	files map[string]*safetensors.File
}

func (r *reader) read(kind, tensor string) ([]byte, error) {
	for _, name := range r.state.of(kind) {
		if _, ok := r.state.Files[name].Tensors[tensor]; !ok {
			continue
		}
		if r.files[name] == nil {
			f, err := safetensors.Open(filepath.Join(r.Path, name))
			if err != nil {
				return nil, err
			}
			r.files[name] = f
		}
		t, err := r.files[name].Read(tensor)
		return t.Data, err
	}
	return nil, fmt.Errorf("no tensor %q in its %s files", tensor, kind)
}

func (r *reader) readModel(model nn.Module) error {
	for _, p := range nn.State(model) {
		if !p.Exists() {
			continue
		}
		data, err := r.read(modelKind, p.Name)
		if err != nil {
			return err
		}
		if err := torch.SetBytes(p.Tensor(), data); err != nil {
			return err
		}
	}
	return nil
}

// readOptimizer loads the state of the parameters that exist here.
func (r *reader) readOptimizer(model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	foreign := map[string]bool{}
	for _, p := range nn.State(model) {
		foreign[p.Name] = !p.Exists()
	}
	here := make([]optim.Placement, len(places))
	for i, place := range places {
		here[i] = optim.Placement{Device: place.Device,
			Params: slices.DeleteFunc(slices.Clone(place.Params),
				func(p nn.NamedParam) bool { return !p.Exists() })}
	}
	updates := maps.Clone(r.state.Updates)
	maps.DeleteFunc(updates, func(name string, _ int64) bool { return foreign[name] })
	var saved []optim.SavedTensor
	for _, name := range r.state.of(optimizerKind) {
		for tensor, entry := range r.state.Files[name].Tensors {
			if foreign[optim.StateTensor{Name: tensor}.Param()] {
				continue
			}
			dtype, err := torch.DTypeOfFile(entry.DType)
			if err != nil {
				return fmt.Errorf("%q: %w", tensor, err)
			}
			saved = append(saved, optim.SavedTensor{Name: tensor, DType: dtype, Shape: entry.Shape,
				Read: func() ([]byte, error) { return r.read(optimizerKind, tensor) }})
		}
	}
	return o.Load(saved, updates, here)
}
