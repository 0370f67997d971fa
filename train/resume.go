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
	"strings"

	"penstock.example/group"
	"penstock.example/internal/disk"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// Checkpoint is a checkpoint on disk.
type Checkpoint struct {
	Path string
	// Recipe is decoded from Contents. Settings of its Choices are maps, lists, strings and json.Number.
	Recipe Recipe
	Contents

	group *group.Group
}

// OpenCheckpoint reads the index of a checkpoint, or of the newest one in a run's directory, for one
// process. It does not check the files with tensors; see Damage. The error is ErrNoCheckpoint if there is
// none, and *DamagedError if the index is damaged.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	if _, err := os.Lstat(filepath.Join(path, stateFile)); err == nil {
		return openCheckpoint(path)
	}
	store := Store{Dir: path}
	steps, err := store.Steps()
	if err == nil && len(steps) == 0 {
		err = fmt.Errorf("train: %w in %s", ErrNoCheckpoint, path)
	}
	if err != nil {
		return nil, err
	}
	return openCheckpoint(store.Path(slices.Max(steps)))
}

func openCheckpoint(path string) (*Checkpoint, error) {
	content, err := disk.Read(filepath.Join(path, stateFile), disk.MaxJSON)
	if err != nil {
		return nil, &DamagedError{path, err}
	}
	c := &Checkpoint{Path: path}
	var encoded []byte
	if err = json.Unmarshal(content, &c.Contents); err == nil {
		encoded, err = c.encode()
	}
	switch {
	case c.Version != 0 && c.Version != formatVersion:
		return nil, fmt.Errorf("train: checkpoint %s has format version %d, this penstock reads version %d: "+
			"resume it with the penstock that wrote it", path, c.Version, formatVersion)
	case err == nil && !bytes.Equal(encoded, content):
		err = errors.New("its content does not match its hash")
	case err == nil:
		err = decode(c.Contents.Recipe, &c.Recipe)
	}
	if err != nil {
		return nil, &DamagedError{path, fmt.Errorf(stateFile+": %w", err)}
	}
	return c, nil
}

// Latest opens the newest checkpoint and checks every byte against its hashes. The error is
// ErrNoCheckpoint if there is none, and *DamagedError if the newest is damaged. A damaged checkpoint is
// not skipped; remove it to resume from an older one. Latest is collective, and each member checks some
// of the files.
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
	c, err := openCheckpoint(s.Path(newest))
	if err == nil && c.Step != newest {
		err = &DamagedError{c.Path, fmt.Errorf("%s is of step %d", stateFile, c.Step)}
	}
	if err == nil {
		c.group = s.Group
		var mine []string
		for i, name := range c.fileNames("") {
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

// Damage checks every byte of the files and returns an error for each damaged file.
func (c *Checkpoint) Damage() []error { return c.damage(c.fileNames("")) }

func (c *Checkpoint) damage(names []string) (list []error) {
	for _, name := range names {
		if err := c.Files[name].check(filepath.Join(c.Path, name)); err != nil {
			list = append(list, err)
		}
	}
	return list
}

// check returns a *DamagedError for the first damaged file.
func (c *Checkpoint) check(names []string) error {
	if list := c.damage(names); list != nil {
		return &DamagedError{c.Path, list[0]}
	}
	return nil
}

// Paths lists the checkpoint's files.
func (c *Checkpoint) Paths() []string {
	paths := []string{filepath.Join(c.Path, stateFile)}
	for _, name := range c.fileNames("") {
		paths = append(paths, filepath.Join(c.Path, name))
	}
	return paths
}

// Changes lists the allowed differences between the checkpoint's recipe and r; see Recipe.
func (c *Checkpoint) Changes(r Recipe) ([]Change, error) {
	all, err := c.recipeChanges(r)
	return slices.DeleteFunc(all, Change.refused), err
}

// Check returns a *MismatchError unless a run of this recipe and model can resume the checkpoint. The
// model need not be materialised.
func (c *Checkpoint) Check(r Recipe, model nn.Module) error {
	all, err := c.recipeChanges(r)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(c Change) bool { return c.recipeField() == "samples" })
	if i >= 0 {
		all[i].Field = "the SHA-256 of the tokenizer" // it is the reason for other changes
	} else {
		i = slices.IndexFunc(all, Change.refused)
	}
	if i >= 0 {
		return &MismatchError{c.Path, all[i]}
	}
	return c.checkTensors(model)
}

// checkTensors returns a *MismatchError unless checkpoint and model have the same tensors.
func (c *Checkpoint) checkTensors(model nn.Module) error {
	saved, given := map[string]any{}, map[string]any{}
	for _, name := range c.fileNames(modelKind) {
		for tensor, t := range c.Files[name].Tensors {
			saved[tensor] = t
		}
	}
	for _, p := range nn.State(model) {
		given[p.Name] = Tensor{torch.FileDType(p.DType()), p.Shape()}
	}
	for _, d := range changes("", saved, given) {
		return &MismatchError{c.Path, Change{fmt.Sprintf("tensor %q", d.Field), strings.Trim(d.Saved, `"`),
			strings.Trim(d.Given, `"`)}}
	}
	return nil
}

// Restore loads the weights and the optimizer's state onto the pipe's devices, one tensor at a time.
// The model must have passed Check. The caller sets the Loop's fields and the loader's Start from
// Progress. After an error model and optimizer are unusable. Restore is collective, and each member
// reads only the tensors of its process.
func (c *Checkpoint) Restore(p *pipe.Pipe, o optim.Optimizer) error {
	var places []optim.Placement
	for _, s := range p.Stages() {
		place := optim.Placement{Device: s.Device}
		for _, q := range s.State() {
			if !q.IsBuffer() && q.Exists() { // frozen parameters too: they may be trained later
				place.Params = append(place.Params, q)
			}
		}
		places = append(places, place)
	}
	return c.restore(p.Model(), places, o)
}

// RestoreModel loads only the weights, for evaluation. It first checks every byte of the model's files.
// The error is *DamagedError if a file is damaged, and *MismatchError if the model has other tensors. If
// reading fails later the model is unusable. RestoreModel is collective.
func (c *Checkpoint) RestoreModel(p *pipe.Pipe) error {
	err := cmp.Or(c.checkTensors(p.Model()), c.check(c.fileNames(modelKind)))
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
			away := func(param string) bool { _, ok := here[param]; return !ok }
			tensors = slices.DeleteFunc(tensors, func(t safetensors.Tensor) bool {
				_, param, _ := strings.Cut(t.Name, ".") // the name begins with the kind of state
				return away(param)
			})
			updates := maps.Clone(c.Updates)
			maps.DeleteFunc(updates, func(param string, _ int64) bool { return away(param) })
			return o.Load(tensors, updates, places)
		})
	}
	if err != nil {
		err = fmt.Errorf("train: restoring from %s: %w", c.Path, err)
	}
	_, err = group.Meet(context.Background(), c.group, "train: checkpoint restored", 0, err)
	return err
}

// read calls f with the tensors in the files of a kind. They can be loaded until f returns.
func (c *Checkpoint) read(kind string, f func([]safetensors.Tensor) error) error {
	var all []safetensors.Tensor
	for _, name := range c.fileNames(kind) {
		file, err := safetensors.Open(filepath.Join(c.Path, name))
		if err != nil {
			return err
		}
		defer file.Close() // it was only read
		all = append(all, file.Tensors()...)
	}
	return f(all)
}

// Merge calls write once with all parameters and buffers, to write them to one file. They are read one
// at a time. If a file of the model is damaged the error is *DamagedError.
func (c *Checkpoint) Merge(write func(model []safetensors.Tensor) error) error {
	if err := c.check(c.fileNames(modelKind)); err != nil {
		return err
	}
	if err := c.read(modelKind, write); err != nil {
		return fmt.Errorf("train: merging the model of %s: %w", c.Path, err)
	}
	return nil
}
