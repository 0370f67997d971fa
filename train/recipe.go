package train

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Recipe records how a run is trained. A run that resumes a checkpoint needs the same recipe to get the
// weights of an uninterrupted run. It may change the optimizer's setting "lr" ("LR" of an optim.Config),
// LRSchedule's setting "schedule-steps", Steps, Epochs, SaveEvery and DropLast; Checkpoint.Changes lists
// them. Data are compared by content and order, so a tokenizer may have another path.
type Recipe struct {
	Model             Choice         `json:"model"`
	Data              Choice         `json:"data"`
	Batch             int            `json:"batch"`
	Chunks            int            `json:"chunks"` // batch norm and dropout see micro-batches
	Seed              uint64         `json:"seed"`
	Optimizer         Choice         `json:"optimizer"`
	LRSchedule        Choice         `json:"schedule"`
	ClipNorm          float64        `json:"clip_norm"`
	Accumulate        int            `json:"accumulate,omitempty"` // Loop.Accumulate; 0 is 1
	DeferredBatchNorm bool           `json:"deferred_batch_norm,omitempty"`
	Autocast          torch.Autocast `json:"autocast,omitempty"`
	TrainOnly         []string       `json:"train_only,omitempty"` // of nn.TrainOnly; nil is all layers

	// A resumed run may change the next five. The last bits of sums depend on Threads and Replicas.
	Threads   int    `json:"threads,omitempty"`  // of each stage
	Replicas  int    `json:"replicas,omitempty"` // 0 is one
	Processes int    `json:"processes,omitempty"`
	Balance   []int  `json:"balance,omitempty"` // layers of each stage
	Plan      string `json:"plan,omitempty"`    // in the caller's format

	DropLast  bool  `json:"drop_last,omitempty"` // data.LoaderConfig.DropLast
	Steps     int64 `json:"steps"`               // Loop.Steps
	Epochs    int   `json:"epochs"`
	SaveEvery int64 `json:"save_every"` // steps between checkpoints; 0 is none

	// Samples describes the samples. data.NewInputs needs it to make inputs without the data set. Check
	// compares only its tokenizer.
	Samples *data.Info        `json:"samples,omitempty"`
	Kernels map[string]string `json:"kernels,omitempty"` // set by Save, not compared
}

// Choice is a name with settings. Two choices are equal if their JSON is.
type Choice struct {
	Name     string `json:"name"`
	Settings any    `json:"settings,omitempty"`
}

// Change is a difference between a checkpoint's recipe or tensors and a resumed run's.
type Change struct {
	Field        string // "batch", "optimizer.settings.lr", `tensor "fc.weight"`
	Saved, Given string // "absent" if missing
}

// MismatchError is returned if a run cannot resume a checkpoint.
type MismatchError struct {
	Path string // of the checkpoint
	Change
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("train: checkpoint %s is of another run: %s is %s there and %s here", e.Path,
		e.Field, e.Saved, e.Given)
}

// A resumed run may change the fields in mayChange and machineFields. A checkpoint may lack the
// fields in mayLack.
var (
	mayChange = []string{"optimizer.settings.lr", "optimizer.settings.LR", "schedule.settings.schedule-steps",
		"steps", "epochs", "save_every", "drop_last", "replicas"}
	machineFields = []string{"threads", "processes", "balance", "kernels"}
	mayLack       = append(slices.Clip(machineFields), "samples")
)

// refused reports whether a resumed run may not make the change.
func (c Change) refused() bool {
	return !slices.Contains(mayChange, c.Field) && !slices.Contains(machineFields, c.recipeField())
}

// recipeField returns the name of the changed field of Recipe, such as "optimizer".
func (c Change) recipeField() string { name, _, _ := strings.Cut(c.Field, "."); return name }

// recipeChanges lists the compared fields that differ in another recipe, sorted by name.
func (c *Checkpoint) recipeChanges(r Recipe) ([]Change, error) {
	saved := map[string]any{"replicas": json.Number("1"), "drop_last": false}
	given := maps.Clone(saved)
	text, err := json.Marshal(r)
	if err = cmp.Or(err, decode(text, &given), decode(c.Contents.Recipe, &saved)); err != nil {
		return nil, fmt.Errorf("train: the recipe: %w", err)
	}
	all := changes("", saved, given)
	otherLength := slices.ContainsFunc(all, func(d Change) bool { return d.Field == "data.settings.samples" })
	return slices.DeleteFunc(all, func(d Change) bool {
		absent, field := d.Saved == jsonText(nil) || d.Given == jsonText(nil), d.recipeField()
		return field == "plan" || d.Field == "data.settings.chosen.tokenizer" ||
			otherLength && d.Field == "data.settings.fingerprint" || // a longer set has another one
			field == "samples" && d.Field != "samples.tokenizer_sha256" ||
			absent && slices.Contains(mayLack, field)
	}), nil
}

// decode decodes JSON. Numbers of type any become json.Number, which keeps their text.
func decode(text []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(to)
}

// changes lists the fields at path that differ between two decoded values, sorted by name.
func changes(path string, saved, given any) (all []Change) {
	left, leftOK := saved.(map[string]any)
	right, rightOK := given.(map[string]any)
	if !leftOK || !rightOK {
		if was, is := jsonText(saved), jsonText(given); was != is {
			return []Change{{path, was, is}}
		}
		return nil
	}
	keys := maps.Clone(left)
	maps.Copy(keys, right)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, changes(strings.TrimPrefix(path+"."+key, "."), left[key], right[key])...)
	}
	return all
}

// jsonText encodes a decoded value. Nil becomes "absent".
func jsonText(v any) string {
	if v == nil {
		return "absent"
	}
	b, _ := json.Marshal(v) // cannot fail: v was decoded from JSON
	return string(b)
}

// DisagreementError lists the facts that differ from rank 0's: "rank 2 has --seed 7, rank 0 has 8".
type DisagreementError struct {
	Differences []string
}

func (e *DisagreementError) Error() string {
	return "train: the processes do not run the same training: " + strings.Join(e.Differences, "; ") +
		"; start all with the same program, command line and data"
}

// Agree compares facts by name, such as "--seed", between the members of a group. If they differ it
// returns a *DisagreementError on every member. Agree is collective and blocks until all have called it.
func Agree(ctx context.Context, g *group.Group, facts map[string]string) error {
	all, err := group.Meet(ctx, g, "facts of the run", facts, nil)
	if err != nil {
		return fmt.Errorf("train: comparing the processes: %w", err)
	}
	names := map[string]string{}
	for _, facts := range all {
		maps.Copy(names, facts)
	}
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		first := all[0][name]
		rank := slices.IndexFunc(all, func(facts map[string]string) bool { return facts[name] != first })
		if rank > 0 {
			differences = append(differences, fmt.Sprintf("rank %d has %s %s, rank 0 has %s", rank, name,
				cmp.Or(all[rank][name], "none"), cmp.Or(first, "none")))
		}
	}
	if differences != nil {
		return &DisagreementError{differences}
	}
	return nil
}

// ParamsSHA256 returns the SHA-256, in hex, of all parameters and buffers of a model. It does not depend
// on the cut. The hash covers the tensors sorted by the bytes of their names, each as
//
//	the name in UTF-8, and a byte 0
//	the number of dimensions, then each dimension, as int64, little-endian
//	the elements, little-endian, row-major
//
// It is collective, and all members get the hash; a nil group is this process alone. No step may run
// meanwhile. Parameters are not sent between processes, and 1 MiB is copied from a device at a time.
func ParamsSHA256(g *group.Group, model nn.Module) (string, error) {
	params := nn.State(model)
	slices.SortFunc(params, func(a, b nn.NamedParam) int { return cmp.Compare(a.Name, b.Name) })
	owners, err := paramOwners(g, params)
	if err != nil {
		return "", fmt.Errorf("train: the hash of the parameters: %w", err)
	}
	h := sha256.New() // its state goes from owner to owner
	for at := 0; at < len(params); {
		owner, first := owners[at], at
		for ; at < len(params) && owners[at] == owner; at++ {
			if owner == g.Rank() && err == nil {
				err = hashParam(h, params[at])
			}
		}
		state, _ := h.(encoding.BinaryMarshaler).MarshalBinary()
		all, err := group.Meet(context.Background(), g,
			fmt.Sprintf("train: hash from parameter %d on", first), state, err)
		if err == nil {
			err = h.(encoding.BinaryUnmarshaler).UnmarshalBinary(all[owner])
		}
		if err != nil {
			return "", fmt.Errorf("train: the hash of the parameters: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashParam(h hash.Hash, p nn.NamedParam) error {
	io.WriteString(h, p.Name)
	h.Write([]byte{0})
	shape := binary.LittleEndian.AppendUint64(nil, uint64(len(p.Shape())))
	for _, size := range p.Shape() {
		shape = binary.LittleEndian.AppendUint64(shape, uint64(size))
	}
	h.Write(shape)
	return torch.Pieces(p.Tensor(), func(piece []byte) error { h.Write(piece); return nil })
}

// Fingerprint returns a hash of a set's description, its length, and sixteen samples spread over
// it, for the settings of Recipe.Data. Sets with other files, windows or orders have different
// fingerprints, as a rule. Equal fingerprints do not prove equal sets.
func Fingerprint(set data.Dataset) (string, error) {
	const samples = 16
	var indices []int
	for i := range min(samples, set.Len()) {
		indices = append(indices, i*set.Len()/min(samples, set.Len()))
	}
	var batch data.Batch
	if err := set.Fill(&batch, indices); err != nil {
		return "", err
	}
	h := sha256.New()
	info := set.Info()
	fmt.Fprintln(h, info.Name, info.Classes, info.Input.Kind, info.Input.Shape, info.Target.Kind,
		info.Target.Shape, set.Len())
	for _, a := range []data.Array{batch.Input, batch.Target} {
		for _, numbers := range []any{a.Float32, a.Int64, a.Uint8} {
			binary.Write(h, binary.LittleEndian, numbers) // cannot fail
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
