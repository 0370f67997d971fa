package train

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Checkpoint is a checkpoint on disk. In a group its files may be in the directories of several
// members.
type Checkpoint struct {
	Path string
	Progress

	state state
	peers peers
	// has says which members have which files in their directories: by rank, then in the order of
	// state.names.
	has [][]bool
}

// Latest finds the newest checkpoint and checks every byte of it against its hashes. The error is
// ErrNoCheckpoint if there is none, *MissingError if files of it are in no member's directory, and
// *DamagedError if it is not what was written. A damaged checkpoint is not skipped: remove it to resume
// from the one before.
//
// In a group Latest is collective. The newest checkpoint is that of any member; each file has to be
// in the directory of one of them, and those that share a directory check its files between them.
func (s Store) Latest() (*Checkpoint, error) {
	p := peers{s.Group}
	var steps []int64
	info, err := os.Stat(s.Dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("train: %s is not a directory of checkpoints but a file", s.Dir)
	} else {
		steps, err = s.Steps()
	}
	newest, err := meet(p, "newest steps", slices.Max(append(steps, -1)), err)
	if err != nil {
		return nil, err
	}
	step := slices.Max(newest)
	if step < 0 {
		return nil, fmt.Errorf("train: %w in %s", ErrNoCheckpoint, s.Dir)
	}
	c := &Checkpoint{Path: s.Path(step), peers: p}
	if err := c.readIndex(step, newest); err != nil {
		return nil, err
	}
	if c.has, err = gather(p, "which files are there", c.present()); err != nil {
		return nil, err
	}
	all, err := s.share()
	if err != nil && p.lost() {
		return nil, err
	}
	if err := c.verify(all); err != nil {
		return nil, err
	}
	return c, nil
}

// readIndex reads the index, which the members with this newest step have, and gives it to the
// others.
func (c *Checkpoint) readIndex(step int64, newest []int64) error {
	here := newest[c.peers.rank()] == step
	var err error
	if here {
		c.state, err = readState(c.Path)
		if err == nil && c.state.Step != step {
			err = &DamagedError{c.Path, fmt.Errorf("%s is of step %d", stateFile, c.state.Step)}
		}
	}
	giver := slices.Index(newest, step)
	given := c.state
	if c.peers.rank() != giver {
		given = state{SHA256: c.state.SHA256}
	}
	all, err := meet(c.peers, "index", given, err)
	if err != nil {
		return err
	}
	for rank := range all {
		if newest[rank] == step && all[rank].SHA256 != all[giver].SHA256 {
			return fmt.Errorf("train: checkpoint %s is another one on rank %d than on rank %d; remove the wrong one, or start anew in other directories",
				c.Path, rank, giver)
		}
	}
	c.state = all[giver]
	c.Progress = c.state.Progress
	return nil
}

// present reports which files are in this process's directory.
func (c *Checkpoint) present() []bool {
	var there []bool
	for _, name := range c.state.names() {
		_, err := os.Lstat(filepath.Join(c.Path, name))
		there = append(there, err == nil)
	}
	return there
}

// verify checks all files, each in every directory that has it. The members of a directory take
// turns.
func (c *Checkpoint) verify(all shared) error {
	if err := c.nowhere(modelKind, optimizerKind); err != nil {
		return err
	}
	var problem error
	turn := map[int]int{} // by leader
	for i, name := range c.state.names() {
		for rank, leader := range all.leaders {
			if rank != leader {
				continue
			}
			var members []int // that share the directory and see the file
			for rank := range all.leaders {
				if all.leaders[rank] == leader && c.has[rank][i] {
					members = append(members, rank)
				}
			}
			if len(members) == 0 {
				continue
			}
			if members[turn[leader]%len(members)] == c.peers.rank() && problem == nil {
				problem = c.state.Files[name].check(filepath.Join(c.Path, name))
			}
			turn[leader]++
		}
	}
	err := c.peers.agree("files checked", problem)
	var found *group.MemberError // by another member
	if problem != nil || errors.As(err, &found) {
		return &DamagedError{c.Path, err}
	}
	return err
}

// reader is the lowest rank that has a file, given by its number, or -1.
func (c *Checkpoint) reader(file int) int {
	return slices.IndexFunc(c.has, func(has []bool) bool { return has[file] })
}

// Files lists the checkpoint's files, so that none of them is written to.
func (c *Checkpoint) Files() []string {
	var paths []string
	for _, name := range append(c.state.names(), stateFile) {
		paths = append(paths, filepath.Join(c.Path, name))
	}
	return paths
}

// Threads is the recipe's number of threads when the checkpoint was saved, or 0 if it was not
// written down.
func (c *Checkpoint) Threads() int { return c.machine().Threads }

// Chunks is the recipe's number of micro-batches when the checkpoint was saved.
func (c *Checkpoint) Chunks() int { return c.machine().Chunks }

// Plan is the recipe's plan when the checkpoint was saved; "" is none.
func (c *Checkpoint) Plan() string { return c.machine().Plan }

// Replicas is the recipe's number of replicas when the checkpoint was saved; 0 is one.
func (c *Checkpoint) Replicas() int { return c.machine().Replicas }

// Balance is how many layers each stage had when the checkpoint was saved; nil if unknown.
func (c *Checkpoint) Balance() []int { return c.machine().Balance }

// Processes is how many there were when the checkpoint was saved, or 0 if it was not written down.
func (c *Checkpoint) Processes() int { return c.machine().Processes }

// Kernels names the kernels in use when the checkpoint was saved, by library (torch.KernelNames);
// nil if unknown.
func (c *Checkpoint) Kernels() map[string]string { return c.machine().Kernels }

// machine is the part of the saved recipe in which a resumed run may differ, and its micro-batches.
func (c *Checkpoint) machine() (saved Recipe) {
	var m struct {
		Threads, Replicas, Processes, Chunks int
		Balance                              []int
		Plan                                 string
		Kernels                              map[string]string
	}
	if json.Unmarshal(c.state.Recipe, &m) != nil {
		return Recipe{} // a recipe of another shape, which Check tells of
	}
	return Recipe{Threads: m.Threads, Replicas: m.Replicas, Processes: m.Processes, Chunks: m.Chunks, Balance: m.Balance, Plan: m.Plan, Kernels: m.Kernels}
}

// Recipe is how the checkpoint was trained. The settings of its Choices are decoded JSON: maps, lists,
// text, and numbers as json.Number. The error is *DamagedError where the recipe is of another shape.
func (c *Checkpoint) Recipe() (r Recipe, err error) {
	decoder := json.NewDecoder(bytes.NewReader(c.state.Recipe))
	decoder.UseNumber()
	if err := decoder.Decode(&r); err != nil {
		return Recipe{}, &DamagedError{c.Path, fmt.Errorf("the recipe: %w", err)}
	}
	return r, nil
}

// Changes are the settings in which a run of this recipe goes on otherwise than the checkpoint was
// trained, as it may: see Recipe. What the checkpoint does not say is none.
func (c *Checkpoint) Changes(r Recipe) ([]Change, error) {
	_, changes, err := compare(c.state.Recipe, r)
	if err != nil {
		return nil, &DamagedError{c.Path, err}
	}
	return slices.DeleteFunc(changes, func(d Change) bool {
		return d.Saved == "absent" && slices.Contains([]string{"steps", "epochs", "save_every"}, d.Field) // it was written before these were
	}), nil
}

// Check returns a *MismatchError unless a run of this recipe and model, which need not be
// materialised, can go on from the checkpoint.
func (c *Checkpoint) Check(r Recipe, model nn.Module) error {
	if err := arg.Given(model, "train: Check: the model", "the run's"); err != nil {
		return err
	}
	if saved, err := c.Recipe(); err == nil { // or of another shape, which compare tells of
		was, is := saved.Samples, r.Samples
		if was != nil && is != nil && is.OtherTokenizer(*was) {
			return &MismatchError{c.Path, "the SHA-256 of the tokenizer", was.Tokenizer, is.Tokenizer}
		}
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
	there := map[string]string{}
	for _, name := range c.state.of(modelKind) {
		for tensor, mark := range c.state.Files[name].Tensors {
			there[tensor] = mark.String()
		}
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
	if left := slices.Sorted(maps.Keys(there)); len(left) > 0 {
		return &MismatchError{c.Path, fmt.Sprintf("tensor %q", left[0]), there[left[0]], "absent"}
	}
	return nil
}

// Restore puts the checkpoint's weights and the optimizer's state on the pipe's devices, one tensor
// at a time. The model must have passed Check. The loop's Step and the loader's Start are Progress.
// After an error model and optimizer are unusable.
//
// In a group Restore is collective. Each member reads what exists in its process, and no other
// tensors; those in files that its directory does not have are sent by a member that has them.
func (c *Checkpoint) Restore(p *pipe.Pipe, o optim.Optimizer) error {
	if err := cmp.Or(arg.Given(p, "train: Restore: the pipe", "the run's"),
		arg.Given(o, "train: Restore: the optimizer", "the run's")); err != nil {
		return err
	}
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
// evaluates and does not train: the optimizer's state is not looked at. Every byte of the model's files
// is checked first. The error is *MissingError if one of them is not there, *DamagedError if one is not
// what was written, and *MismatchError if the model is another than the checkpoint's. After an error
// while tensors are read the model is unusable. In a group it is as Restore.
func (c *Checkpoint) RestoreModel(p *pipe.Pipe) error {
	if err := arg.Given(p, "train: RestoreModel: the pipe", "one of pipe.New"); err != nil {
		return err
	}
	err := cmp.Or(c.checkTensors(p.Model()), c.checkModel())
	if err := c.peers.agree("model checked", err); err != nil {
		return err
	}
	from := c.open()
	if err = c.restoreModel(from, p.Model()); err != nil {
		err = fmt.Errorf("train: restoring the model from %s: %w", c.Path, err)
	}
	err = cmp.Or(err, from.close())
	return c.peers.agree("model restored", err)
}

// checkModel returns a *MissingError if a file of the model is missing everywhere, and a *DamagedError
// unless those in this process's directory are as they were written.
func (c *Checkpoint) checkModel() error {
	if err := c.nowhere(modelKind); err != nil {
		return err
	}
	for i, name := range c.state.names() {
		if kindOf(name) != modelKind || !c.has[c.peers.rank()][i] {
			continue
		}
		if err := c.state.Files[name].check(filepath.Join(c.Path, name)); err != nil {
			return &DamagedError{c.Path, err}
		}
	}
	return nil
}

func (c *Checkpoint) restore(model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	from := c.open()
	err := c.restoreModel(from, model)
	if err != nil {
		err = fmt.Errorf("train: restoring the model from %s: %w", c.Path, err)
	} else if err = c.restoreOptimizer(from, model, places, o); err != nil {
		err = fmt.Errorf("train: restoring the optimizer from %s: %w", c.Path, err)
	}
	err = cmp.Or(err, from.close())
	return c.peers.agree("checkpoint restored", err)
}

func (c *Checkpoint) restoreModel(from *source, model nn.Module) error {
	for _, p := range nn.State(model) {
		if !p.Exists() {
			continue
		}
		data, err := from.read(modelKind, p.Name)
		if err != nil {
			return err
		}
		if err := torch.SetBytes(p.Tensor(), data); err != nil {
			return err
		}
	}
	return nil
}

// restoreOptimizer loads the state of the parameters that exist here.
func (c *Checkpoint) restoreOptimizer(from *source, model nn.Module, places []optim.Placement, o optim.Optimizer) error {
	elsewhere := map[string]bool{}
	for _, p := range nn.State(model) {
		elsewhere[p.Name] = !p.Exists()
	}
	here := make([]optim.Placement, len(places))
	for i, place := range places {
		here[i].Device = place.Device
		for _, p := range place.Params {
			if p.Exists() {
				here[i].Params = append(here[i].Params, p)
			}
		}
	}
	updates := maps.Clone(c.state.Updates)
	maps.DeleteFunc(updates, func(name string, _ int64) bool { return elsewhere[name] })
	var saved []optim.SavedTensor
	for _, name := range c.state.of(optimizerKind) {
		for tensor, mark := range c.state.Files[name].Tensors {
			if elsewhere[optim.StateTensor{Name: tensor}.Param()] {
				continue
			}
			dtype, err := torch.DTypeOfFile(mark.DType)
			if err != nil {
				return fmt.Errorf("%q: %w", tensor, err)
			}
			saved = append(saved, optim.SavedTensor{Name: tensor, DType: dtype, Shape: mark.Shape,
				Read: func() ([]byte, error) { return from.read(optimizerKind, tensor) }})
		}
	}
	return o.Load(saved, updates, here)
}
