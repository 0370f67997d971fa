package train

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// Save writes a checkpoint and returns its path. After an error, or a crash at any moment, the
// checkpoints from before are untouched. Tensors are copied out one at a time, so that saving takes
// the memory of the largest. A checkpoint of the same step that is there already is of the same run
// and is left as it is.
//
// In a group Save is collective. Each member writes the parameters and buffers that exist in its
// process and the optimizer's state for them; what exists in several is written by the lowest rank.
// Progress and recipe are those of rank 0.
//
// No step may run meanwhile.
func (s Store) Save(at Progress, r Recipe, model nn.Module, o optim.Optimizer) (path string, err error) {
	if err := cmp.Or(arg.Given(model, "train: Save: the model", "the run's"),
		arg.Given(o, "train: Save: the optimizer", "the run's")); err != nil {
		return "", err
	}
	path = s.Path(at.Step)
	failed := func(err error) (string, error) { return "", fmt.Errorf("train: saving %s: %w", path, err) }
	all, err := s.share()
	if err := all.agree("who shares a directory to save in", err); err != nil {
		return failed(err)
	}
	info, err := os.Lstat(path)
	there, err := gather(all.peers, fmt.Sprintf("whether there is a checkpoint of step %d", at.Step), err == nil && info.IsDir())
	if err != nil {
		return failed(err)
	}
	if slices.Contains(there, true) {
		return path, nil
	}
	if err := all.save(path, at, r, model, o); err != nil {
		return failed(err)
	}
	if err := all.led("older checkpoints removed", func() error { return s.clean(at.Best) }); err != nil {
		return "", fmt.Errorf("train: %s is saved, but older checkpoints cannot be removed: %w", path, err)
	}
	return path, nil
}

func (s shared) save(path string, at Progress, r Recipe, model nn.Module, o optim.Optimizer) error {
	temporary := s.temporary(at.Step)
	abandon := func(err error) error {
		s.lead(func() error { return s.remove(temporary) }) // the first error is the one to report
		return err
	}
	err := s.led("directory made", func() error {
		if err := s.remove(temporary); err != nil {
			return err
		}
		return s.mkdir(temporary)
	})
	var index state
	if err == nil {
		index, err = s.writeShards(temporary, at, r, model, o)
	}
	if err != nil { // nobody renames before all are prepared
		return abandon(err)
	}
	err = s.led("checkpoint prepared", func() error { return s.prepareIndex(temporary, index) })
	if err != nil {
		if s.lost() && s.apart() {
			return err // others may have renamed theirs
		}
		return abandon(err)
	}
	return s.commit(temporary, path)
}

// part is what a member adds to the index.
type part struct {
	Progress
	Recipe  json.RawMessage
	Updates map[string]int64
	Files   map[string]fileMark
}

// writeShards writes this member's files and returns the index of the files of all.
func (s shared) writeShards(temporary string, at Progress, r Recipe, model nn.Module, o optim.Optimizer) (state, error) {
	params := nn.State(model)
	owners, err := s.owners(params)
	if err != nil {
		return state{}, err
	}
	mine, err := s.writePart(temporary, at, r, params, owners, o)
	parts, err := meet(s.peers, fmt.Sprintf("files of step %d", at.Step), mine, err)
	if err != nil {
		return state{}, err
	}
	index := state{Version: formatVersion, Progress: parts[0].Progress, Recipe: parts[0].Recipe,
		Updates: map[string]int64{}, Files: map[string]fileMark{}}
	for _, p := range parts {
		for name, mark := range p.Files {
			index.Files[name] = mark
		}
		for name, n := range p.Updates {
			index.Updates[name] = n
		}
	}
	return index, nil
}

// writePart writes the files of the parameters and buffers that this member stands for.
func (s shared) writePart(temporary string, at Progress, r Recipe, params []nn.NamedParam, owners []int, o optim.Optimizer) (part, error) {
	r.Kernels = torch.KernelNames()
	recipe, err := json.Marshal(r)
	if err != nil {
		return part{}, err
	}
	p := part{Progress: at, Recipe: recipe, Updates: map[string]int64{}, Files: map[string]fileMark{}}
	tensors := map[string][]safetensors.Tensor{modelKind: nil, optimizerKind: nil}
	elsewhere := map[string]bool{}
	for i, n := range params {
		if owners[i] == s.rank() {
			tensors[modelKind] = append(tensors[modelKind], n.FileTensor())
			if !n.IsBuffer() {
				p.Updates[n.Name] = 0 // of one that was always frozen the optimizer knows nothing
			}
		} else {
			elsewhere[n.Name] = true
		}
	}
	for _, t := range o.State() {
		if !elsewhere[t.Param()] {
			tensors[optimizerKind] = append(tensors[optimizerKind], torch.FileTensor(t.Name, t.Tensor))
		}
	}
	for name, n := range o.Steps() {
		if !elsewhere[name] {
			p.Updates[name] = n
		}
	}
	for _, kind := range []string{modelKind, optimizerKind} {
		list, name := tensors[kind], shardName(kind, s.rank(), s.size())
		mark, err := s.writeFile(filepath.Join(temporary, name), func(w io.Writer) error { return safetensors.Write(w, list, safetensors.PyTorch) })
		if err != nil {
			return part{}, err
		}
		mark.Tensors = marks(list)
		p.Files[name] = mark
	}
	return p, nil
}

// prepareIndex writes the index, and returns when all of the checkpoint in this directory would
// survive a loss of power.
func (s shared) prepareIndex(temporary string, index state) error {
	text, err := index.encode()
	if err != nil {
		return err
	}
	if _, err := s.writeFile(filepath.Join(temporary, stateFile),
		func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	if err := s.syncDirectory(temporary); err != nil || !s.apart() {
		return err
	}
	// Other directories rely on this one having it.
	return s.syncDirectory(s.Dir)
}
