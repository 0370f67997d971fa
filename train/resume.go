package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

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
	// Recipe is how the checkpoint was trained. The settings of its Choices are decoded JSON: maps,
	// lists, text, and numbers as json.Number.
	Recipe Recipe
	Contents

	group *group.Group
}

// OpenCheckpoint reads the index of the checkpoint in the directory at path, for one process. Its
// files are not looked at before they are read; Damage checks them. The error is *DamagedError if
// the index is damaged.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	contents, err := readContents(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Path: path, Contents: contents}
	if err := decode(contents.Recipe, &c.Recipe); err != nil {
		return nil, &DamagedError{path, fmt.Errorf("the recipe: %w", err)}
	}
	return c, nil
}

// Latest finds the newest checkpoint and checks every byte of it against its hashes. The error is
// ErrNoCheckpoint if there is none, and *DamagedError if it is damaged. A damaged
// checkpoint is not skipped: remove it to resume from the one before. In a group Latest is
// collective, and the members check a part of the files each.
func (s Store) Latest() (*Checkpoint, error) {
	ctx := context.Background()
	newest, err := group.FromFirst(ctx, s.Group, "train: newest checkpoint", func() (int64, error) {
		steps, err := s.Steps()
		return slices.Max(append(steps, -1)), err
	})
	if err == nil && newest < 0 {
		err = fmt.Errorf("train: %w in %s", ErrNoCheckpoint, s.Dir)
	}
	if err != nil {
		return nil, err
	}
	c, err := OpenCheckpoint(s.Path(newest))
	if err == nil && c.Step != newest {
		err = &DamagedError{c.Path, fmt.Errorf("%s is of step %d", stateFile, c.Step)}
	}
	if err == nil {
		c.group = s.Group
		var mine []string
		for i, name := range c.of("") {
			if i%s.Group.Size() == s.Group.Rank() {
				mine = append(mine, name)
			}
		}
		err = c.check(mine)
	}
	_, err = group.Meet(ctx, s.Group, "train: checkpoint checked", 0, err)
	if another := (*group.MemberError)(nil); errors.As(err, &another) {
		err = &DamagedError{s.Path(newest), err}
	}
	return c, err
}

// Damage checks every byte of the files against their hashes. It returns an error for each damaged file.
func (c *Checkpoint) Damage() (damage []error) {
	for _, name := range c.of("") {
		if err := c.Files[name].check(filepath.Join(c.Path, name)); err != nil {
			damage = append(damage, err)
		}
	}
	return damage
}

// check returns a *DamagedError unless the files are as they were written.
func (c *Checkpoint) check(names []string) error {
	for _, name := range names {
		if err := c.Files[name].check(filepath.Join(c.Path, name)); err != nil {
			return &DamagedError{c.Path, err}
		}
	}
	return nil
}

// Paths lists the checkpoint's files, so that none of them is written to.
func (c *Checkpoint) Paths() []string {
	paths := []string{filepath.Join(c.Path, stateFile)}
	for _, name := range c.of("") {
		paths = append(paths, filepath.Join(c.Path, name))
	}
	return paths
}

// Changes are the settings in which a run of this recipe goes on otherwise than the checkpoint was
// trained, as it may: see Recipe.
func (c *Checkpoint) Changes(r Recipe) ([]Change, error) {
	all, err := c.differences(r)
	return slices.DeleteFunc(all, Change.refused), err
}

// Check returns a *MismatchError unless a run of this recipe and model, which need not be
// materialised, can go on from the checkpoint.
func (c *Checkpoint) Check(r Recipe, model nn.Module) error {
	if was, is := c.Recipe.Samples, r.Samples; was != nil && is != nil && is.OtherTokenizer(*was) {
		return c.mismatch("the SHA-256 of the tokenizer", was.Tokenizer, is.Tokenizer)
	}
	all, err := c.differences(r)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, Change.refused); i >= 0 {
		return &MismatchError{c.Path, all[i]}
	}
	return c.checkTensors(model)
}

func (c *Checkpoint) mismatch(field, saved, given string) error {
	return &MismatchError{c.Path, Change{field, saved, given}}
}

// checkTensors returns a *MismatchError unless the checkpoint has the model's tensors, and no others.
func (c *Checkpoint) checkTensors(model nn.Module) error {
	saved := map[string]string{}
	for _, name := range c.of(modelKind) {
		for tensor, t := range c.Files[name].Tensors {
			saved[tensor] = t.String()
		}
	}
	for _, p := range byName(nn.State(model)) {
		given := fmt.Sprintf("%s%v", torch.FileDType(p.DType()), p.Shape())
		if was := cmp.Or(saved[p.Name], "absent"); was != given {
			return c.mismatch(fmt.Sprintf("tensor %q", p.Name), was, given)
		}
		delete(saved, p.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(saved)) {
		return c.mismatch(fmt.Sprintf("tensor %q", name), saved[name], "absent")
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
			if !q.IsBuffer() && q.Exists() { // also one that is frozen now: it may be trained again
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
	err := cmp.Or(c.checkTensors(p.Model()), c.check(c.of(modelKind)))
	if _, err := group.Meet(context.Background(), c.group, "train: model checked", 0, err); err != nil {
		return err
	}
	return c.restore(p.Model(), nil, nil)
}

// restore restores the model, and the optimizer unless it is nil.
func (c *Checkpoint) restore(model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	here := map[string]nn.NamedParam{}
	for _, p := range nn.State(model) {
		if p.Exists() {
			here[p.Name] = p
		}
	}
	read := 0
	err := c.read(modelKind, func(tensors []safetensors.Tensor) error {
		for _, t := range tensors {
			if p, ok := here[t.Name]; ok {
				read++
				if err := t.Load(func(b []byte) error { return torch.SetBytes(p.Tensor(), b) }); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && read < len(here) {
		err = fmt.Errorf("the files have %d of %d tensors", read, len(here))
	}
	if err == nil && o != nil {
		err = c.read(optimizerKind, func(tensors []safetensors.Tensor) error {
			var saved []optim.SavedTensor
			for _, t := range tensors {
				_, param, _ := strings.Cut(t.Name, ".") // after the kind of state
				if _, ok := here[param]; !ok {
					continue
				}
				dtype, err := torch.DTypeOfFile(t.DType)
				if err != nil {
					return fmt.Errorf("%q: %w", t.Name, err)
				}
				saved = append(saved, optim.SavedTensor{Name: t.Name, DType: dtype, Shape: t.Shape,
					Read: func() (out []byte, err error) {
						err = t.Load(func(b []byte) error { out = b; return nil })
						return out, err
					}})
			}
			updates := maps.Clone(c.Updates)
			maps.DeleteFunc(updates, func(name string, _ int64) bool { _, ok := here[name]; return !ok })
			return o.Load(saved, updates, places)
		})
	}
	if err != nil {
		err = fmt.Errorf("train: restoring from %s: %w", c.Path, err)
	}
	_, err = group.Meet(context.Background(), c.group, "train: checkpoint restored", 0, err)
	return err
}

// read calls f with the tensors in the files of a kind, which can be loaded until it returns.
func (c *Checkpoint) read(kind string, f func([]safetensors.Tensor) error) error {
	var all []safetensors.Tensor
	for _, name := range c.of(kind) {
		file, err := safetensors.Open(filepath.Join(c.Path, name))
		if err != nil {
			return err
		}
		defer file.Close() // it was only read
		for _, t := range file.Tensors() {
			t.Load = func(write func([]byte) error) error {
				t, err := file.Read(t.Name)
				if err != nil {
					return err
				}
				return write(t.Data)
			}
			all = append(all, t)
		}
	}
	return f(all)
}

// Merge calls write once with all parameters and buffers of the model, such as to write them to one file.
// Elements are read one tensor at a time. The error is *DamagedError if a file of the model is damaged.
func (c *Checkpoint) Merge(write func(model []safetensors.Tensor) error) error {
	if err := c.check(c.of(modelKind)); err != nil {
		return err
	}
	if err := c.read(modelKind, write); err != nil {
		return fmt.Errorf("train: merging the model of %s: %w", c.Path, err)
	}
	return nil
}
