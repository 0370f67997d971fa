package train

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock.example/data"
	"penstock.example/torch"
)

// Recipe records how a run is trained. A run that resumes a checkpoint needs the same recipe to get the
// weights of an uninterrupted run. It may change the optimizer's setting "lr" ("LR" of an optim.Config),
// LRSchedule's setting "schedule-steps", Steps, Epochs, SaveEvery and DropLast; Checkpoint.Changes lists
// them. What identifies data is its content and order, so the path of a tokenizer is not compared.
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

// mayChange are fields that a resumed run may change. Fields of ifKnown are compared if both runs have them;
// those of ofMachine may change.
var (
	mayChange = []string{"optimizer.settings.lr", "optimizer.settings.LR", "schedule.settings.schedule-steps",
		"steps", "epochs", "save_every", "drop_last", "replicas"}
	ofMachine = []string{"threads", "processes", "balance", "kernels"}
	ifKnown   = append(slices.Clip(ofMachine), "samples")
)

// refused reports whether a resumed run may not make the change.
func (c Change) refused() bool {
	return !slices.Contains(mayChange, c.Field) && !slices.Contains(ofMachine, c.top())
}

// top is the name of a field of Recipe.
func (c Change) top() string { top, _, _ := strings.Cut(c.Field, "."); return top }

// recipeChanges lists the compared fields that differ in another recipe, sorted by name.
func (c *Checkpoint) recipeChanges(r Recipe) ([]Change, error) {
	saved := map[string]any{"replicas": json.Number("1"), "drop_last": false}
	given := maps.Clone(saved)
	text, err := json.Marshal(r)
	if err = cmp.Or(err, decode(text, &given), decode(c.Contents.Recipe, &saved)); err != nil {
		return nil, fmt.Errorf("train: the recipe: %w", err)
	}
	return slices.DeleteFunc(changes("", saved, given), func(d Change) bool {
		absent := d.Saved == jsonText(nil) || d.Given == jsonText(nil)
		return d.top() == "plan" || d.Field == "data.settings.chosen.tokenizer" ||
			d.top() == "samples" && d.Field != "samples.tokenizer_sha256" ||
			absent && slices.Contains(ifKnown, d.top())
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
