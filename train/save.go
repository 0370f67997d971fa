package train

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/optim"
	"penstock/safetensors"
	"penstock/torch"
)

// Save writes a checkpoint and returns its path. After an error, or a crash at any moment, the
// checkpoints from before are untouched. Tensors are copied out one at a time, so that saving takes
// the memory of the largest. A checkpoint of the same step that is there already is of the same run
// and is left as it is.
//
// No step may run meanwhile.
func (s Store) Save(at Progress, r Recipe, model nn.Module, o optim.Optimizer) (path string, err error) {
	if err := cmp.Or(arg.Given(model, "train: Save: the model", "the run's"),
		arg.Given(o, "train: Save: the optimizer", "the run's")); err != nil {
		return "", err
	}
	path = s.path(at.Step)
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return path, nil
	}
	if err := s.save(path, at, r, model, o); err != nil {
		return "", fmt.Errorf("train: saving %s: %w", path, err)
	}
	if err := s.clean(); err != nil {
		return "", fmt.Errorf("train: %s is saved, but older checkpoints cannot be removed: %w", path, err)
	}
	return path, nil
}

func (s Store) save(path string, at Progress, r Recipe, model nn.Module, o optim.Optimizer) (err error) {
	temporary := s.temporary(at.Step)
	if err := os.RemoveAll(temporary); err != nil {
		return err
	}
	if err := os.Mkdir(temporary, 0o777); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(temporary) // the first error is the one to report
		}
	}()

	r.Kernels = torch.KernelNames()
	recipe, err := json.Marshal(r)
	if err != nil {
		return err
	}
	st := state{Version: formatVersion, Progress: at, Recipe: recipe, Updates: o.Steps(), Files: map[string]fileMark{}}
	for name, tensors := range map[string][]safetensors.Tensor{modelFile: nn.FileTensors(model),
		optimizerFile: optimizerTensors(o)} {
		st.Files[name], err = s.writeFile(filepath.Join(temporary, name),
			func(w io.Writer) error { return safetensors.Write(w, tensors, nil) })
		if err != nil {
			return err
		}
	}
	text, err := st.encode()
	if err != nil {
		return err
	}
	if _, err := s.writeFile(filepath.Join(temporary, stateFile),
		func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	if err := s.syncDirectory(temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return s.syncDirectory(s.Dir)
}

// writeFile writes a new file, forces it to disk and says what was written.
func (s Store) writeFile(path string, write func(io.Writer) error) (mark fileMark, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fileMark{}, err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	tally := &tally{to: bufio.NewWriterSize(f, 1<<20), hash: sha256.New()}
	if err := write(tally); err != nil {
		return fileMark{}, err
	}
	if err := tally.to.Flush(); err != nil {
		return fileMark{}, err
	}
	return fileMark{tally.bytes, hex.EncodeToString(tally.hash.Sum(nil))}, s.toDisk(f)
}

// tally passes on what is written, and counts and hashes it.
type tally struct {
	to    *bufio.Writer
	hash  hash.Hash
	bytes int64
}

func (t *tally) Write(b []byte) (int, error) {
	n, err := t.to.Write(b)
	t.hash.Write(b[:n])
	t.bytes += int64(n)
	return n, err
}

func (s Store) syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.toDisk(d)
}

// toDisk returns when a file, or a directory's list of names, would survive a loss of power.
func (s Store) toDisk(f *os.File) error {
	if s.sync != nil {
		return s.sync(f)
	}
	return f.Sync()
}

// optimizerTensors lists an optimizer's state to be written.
func optimizerTensors(o optim.Optimizer) []safetensors.Tensor {
	var out []safetensors.Tensor
	for _, s := range o.State() {
		out = append(out, torch.FileTensor(s.Name, s.Tensor))
	}
	return out
}
