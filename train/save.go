package train

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/group"
	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// Save writes a checkpoint and returns its path. An error, or a crash at any moment, leaves earlier
// checkpoints untouched. Tensors are copied from the devices one at a time. If the step already has a
// checkpoint, Save keeps it. No step may run meanwhile.
//
// Save is collective. Each member writes the parameters and buffers of its process and the optimizer's
// state for them. If several processes have a parameter, the lowest rank writes it. Progress and recipe
// are rank 0's.
func (s Store) Save(at Progress, r Recipe, model nn.Module, o optim.Optimizer) (path string, err error) {
	path = s.Path(at.Step)
	exists, err := group.FromFirst(context.Background(), s.Group, "train: whether the checkpoint exists",
		func() (bool, error) {
			info, err := os.Lstat(path)
			return err == nil && info.IsDir(), nil
		})
	if exists && err == nil {
		return path, nil
	} else if err == nil {
		err = s.save(path, at, r, model, o)
	}
	if err != nil {
		return "", fmt.Errorf("train: saving %s: %w", path, err)
	}
	err = s.onFirst("older checkpoints removed", func() error { return s.removeOld(at.Best) })
	if err != nil {
		return "", fmt.Errorf("train: %s is saved, but older checkpoints cannot be removed: %w", path, err)
	}
	return path, nil
}

func (s Store) save(path string, at Progress, r Recipe, model nn.Module, o optim.Optimizer) error {
	temporary := s.temporaryPath(at.Step, "")
	err := s.onFirst("directory made", func() error {
		return cmp.Or(s.remove(temporary),
			s.do("mkdir", temporary, func() error { return os.MkdirAll(temporary, 0o777) }))
	})
	var index Contents
	if err == nil {
		index, err = s.writeShards(temporary, at, r, nn.State(model), o)
	}
	if err == nil {
		err = s.onFirst("checkpoint renamed", func() error { return s.commit(temporary, path, index) })
	}
	if err != nil && s.Group.Rank() == 0 {
		s.remove(temporary) // the earlier error is reported
	}
	return err
}

// commit writes the index, forces the directory to disk and renames it.
func (s Store) commit(temporary, path string, index Contents) error {
	text, err := index.encode()
	if err == nil {
		_, err = s.writeFile(filepath.Join(temporary, stateFile),
			func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	if err == nil {
		err = s.syncDirectory(temporary)
	}
	if err == nil {
		err = s.rename(temporary, path)
	}
	if err == nil {
		err = s.syncDirectory(s.Dir)
	}
	return err
}

// writeShards writes this member's files and returns the index of all files.
func (s Store) writeShards(temporary string, at Progress, r Recipe, params []nn.NamedParam,
	o optim.Optimizer) (index Contents, err error) {
	owners, err := paramOwners(s.Group, params)
	if err != nil {
		return index, err
	}
	r.Kernels = system.KernelNames()
	recipe, err := json.Marshal(r)
	index = Contents{Version: formatVersion, Progress: at, Recipe: recipe, Updates: map[string]int64{},
		Files: map[string]File{}}
	tensors := map[string][]safetensors.Tensor{modelKind: nil, optimizerKind: nil} // by kind
	foreign := map[string]bool{}                                                   // of another member
	for i, n := range params {
		kind := modelKind
		if foreign[n.Name] = owners[i] != s.Group.Rank(); foreign[n.Name] {
			continue
		} else if !n.IsBuffer() {
			index.Updates[n.Name] = 0 // the optimizer does not know parameters that were always frozen
			if !n.Trainable() {
				kind = frozenKind
			}
		}
		tensors[kind] = append(tensors[kind], n.FileTensor())
	}
	for _, t := range o.State() {
		if !foreign[t.Param] {
			tensors[optimizerKind] = append(tensors[optimizerKind], torch.FileTensor(t.Name, t.Tensor))
		}
	}
	for name, n := range o.Steps() {
		if !foreign[name] {
			index.Updates[name] = n
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(tensors)) {
		if err == nil {
			err = s.writeTensors(temporary, kind, tensors[kind], index.Files)
		}
	}
	all, err := group.Meet(context.Background(), s.Group, fmt.Sprintf("train: files of step %d", at.Step),
		index, err)
	if err != nil {
		return index, err
	}
	index = all[0]
	for _, part := range all[1:] {
		maps.Copy(index.Files, part.Files)
		maps.Copy(index.Updates, part.Updates)
	}
	return index, nil
}

// writeTensors writes this member's file of a kind and adds it to files.
func (s Store) writeTensors(dir, kind string, list []safetensors.Tensor, files map[string]File) error {
	name := shardName(kind, s.Group.Rank(), s.Group.Size())
	write := func(w io.Writer) error { return safetensors.Write(w, list, safetensors.PyTorch) }
	file, err := File{}, errors.ErrUnsupported
	if kind == frozenKind {
		file, err = s.linkFile(dir, name, write)
	}
	if err != nil {
		file, err = s.writeFile(filepath.Join(dir, name), write)
	}
	file.Tensors = map[string]Tensor{}
	for _, t := range list {
		file.Tensors[t.Name] = Tensor{t.DType, append([]int64{}, t.Shape...)}
	}
	files[name] = file
	return err
}

// linkFile links the newest checkpoint's file of this name, if write would write the same.
func (s Store) linkFile(dir, name string, write func(w io.Writer) error) (File, error) {
	newest, err := OpenCheckpoint(s.Dir)
	if err != nil {
		return File{}, err
	}
	hash, was := sha256.New(), newest.Files[name]
	if err := write(hash); err != nil {
		return File{}, err
	}
	if hex.EncodeToString(hash.Sum(nil)) != was.SHA256 {
		return File{}, errors.ErrUnsupported
	}
	return was, os.Link(filepath.Join(newest.Path, name), filepath.Join(dir, name))
}

// paramOwners returns the lowest rank in which each parameter or buffer exists.
func paramOwners(g *group.Group, params []nn.NamedParam) ([]int, error) {
	exist := make([]bool, len(params))
	for i, n := range params {
		exist[i] = n.Exists()
	}
	all, err := group.Meet(context.Background(), g, "train: which parameters exist", exist, nil)
	if err != nil {
		return nil, err
	}
	ranks := make([]int, len(params))
	for i, n := range params {
		ranks[i] = slices.IndexFunc(all, func(exist []bool) bool { return exist[i] })
		if ranks[i] < 0 {
			return nil, fmt.Errorf("parameter %q exists in no process; place the model first", n.Name)
		}
	}
	return ranks, nil
}
