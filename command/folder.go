package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/internal/option"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/train"
)

// modelConfig describes a model in a folder of Hugging Face's layout.
const modelConfig = "config.json"

// smallFiles are the files of such a folder besides its weights. A run copies them to its directory, so
// that it needs the folder no more.
var smallFiles = []string{modelConfig, "generation_config.json", "preprocessor_config.json",
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
	"merges.txt", "tokenizer.model", "chat_template.jinja"}

// modelFolder returns the folder of a model's small files: a run's copy if it has one. dir is the run's
// directory, "" is none.
func modelFolder(name, dir string) string {
	if copied := filepath.Join(dir, "model"); dir != "" && models.IsFolder(name) {
		if _, err := os.Stat(filepath.Join(copied, modelConfig)); err == nil {
			return copied
		}
	}
	return name
}

func copySmallFiles(to, from string) error {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	for _, name := range smallFiles {
		content, err := disk.Read(filepath.Join(from, name), disk.MaxJSON)
		if err == nil {
			err = writeFile(filepath.Join(to, name), content)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// modelFlag is --model. It takes the path of a folder as well.
func modelFlag(s *pflag.FlagSet, to *string) {
	option.Word(s, to, "model", "", "`NAME` of the model, which penstock models lists; or PATH of a folder "+
		"with a model of Hugging Face, such as ./llama", models.Names()...)
	v := s.Lookup("model").Value.(*option.Value)
	named := v.Read
	v.Read = func(text string) error {
		if models.IsFolder(text) {
			*to = text
			return nil
		}
		err := named(text)
		if _, missing := os.Stat(filepath.Join(text, modelConfig)); err != nil && missing == nil {
			err = fmt.Errorf("%w; the folder is ./%s", err, text)
		}
		return err
	}
}

// adapters is --lora; a Rank of 0 is none.
type adapters struct{ nn.LoRA }

func (a *adapters) register(s *pflag.FlagSet) {
	s.Var(&option.Value{Read: a.read, Show: a.String}, "lora", "train adapters of linear layers alone, "+
		"by `SETTINGS` such as r=8,alpha=16,dropout=0.05,layers=\"*.q_proj *.v_proj\"; * is any text")
}

func (a *adapters) read(text string) error {
	a.LoRA = nn.LoRA{Alpha: 8, Layers: []string{"*.q_proj", "*.v_proj"}}
	rank := int64(8)
	err := arg.Set("--lora", []arg.Setting{
		{Name: "r", Default: "8", Read: arg.Whole(&rank, 1, math.MaxInt32)},
		{Name: "alpha", Default: "8", Read: arg.Amount(&a.Alpha, 1e6)},
		{Name: "dropout", Default: "0", Read: arg.Amount(&a.Dropout, 1)},
		{Name: "layers", Default: "*.q_proj *.v_proj", Read: func(names string) error {
			a.Layers = strings.Fields(names)
			return nil
		}}}, []string{text})
	a.Rank = rank
	return err
}

// String returns the adapters as --lora reads them; "" is none.
func (a *adapters) String() string {
	if a.Rank == 0 {
		return ""
	}
	return fmt.Sprintf("r=%d,alpha=%v,dropout=%v,layers=%s", a.Rank, a.Alpha, a.Dropout,
		strings.Join(a.Layers, " "))
}

func newModel(name string, o models.Options, a adapters) (*nn.Sequential, error) {
	model, err := models.New(name, o)
	if err == nil && a.Rank > 0 {
		if err = nn.AddLoRA(model, a.LoRA); err != nil {
			err = badUsage("--lora or --adapter: %s", strings.TrimPrefix(err.Error(), "nn: AddLoRA: "))
		}
	}
	return model, err
}

// freeze leaves only adapters and the layers of --train-only trainable, if that flag is given.
func freeze(model *nn.Sequential, trainOnly []string) error {
	if trainOnly == nil {
		return nil
	}
	if err := nn.TrainOnly(model, trainOnly...); err != nil {
		return badUsage("--train-only: %s", strings.TrimPrefix(err.Error(), "nn: TrainOnly: "))
	}
	if a := nn.Adapters(model); len(nn.State(a)) > 0 {
		nn.Train(model)
		nn.Unfreeze(a)
	}
	return nil
}

// folderOrCheckpoint opens a checkpoint, or a folder with a model as a checkpoint without a run.
func folderOrCheckpoint(dir string, best bool) (*train.Checkpoint, error) {
	if _, err := os.Stat(filepath.Join(dir, modelConfig)); err != nil {
		return findCheckpoint(dir, best)
	}
	if !models.IsFolder(dir) {
		dir = "." + string(filepath.Separator) + dir
	}
	return &train.Checkpoint{Path: dir, Recipe: train.Recipe{Model: train.Choice{Name: dir}}}, nil
}

// exportFolder writes a model in the layout of its folder, with floats of a dtype.
func exportFolder(out, dtype string, t *trained, tensors []safetensors.Tensor) error {
	if err := copySmallFiles(out, t.folder); err != nil {
		return err
	}
	path := filepath.Join(out, modelConfig)
	content, err := disk.Read(path, disk.MaxJSON)
	if err != nil {
		return err
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(content, &config); err != nil {
		return err
	}
	set := func(name string, value any) { config[name], _ = json.Marshal(value) } // of plain values
	delete(config, "torch_dtype")                                                 // the older name
	set("dtype", cmp.Or(dtype, "float32"))
	if s := t.recipe.Samples; s != nil && s.Task() == data.Classification {
		labels, ids := map[string]string{}, map[string]int{}
		for i := range s.Classes {
			name := strconv.Itoa(i)
			if i < len(s.ClassNames) {
				name = s.ClassNames[i]
			}
			labels[strconv.Itoa(i)], ids[name] = name, i
		}
		set("id2label", labels)
		set("label2id", ids)
	}
	if content, err = json.MarshalIndent(config, "", "  "); err != nil {
		return err
	}
	if err := writeFile(path, append(content, '\n')); err != nil {
		return err
	}
	return safetensors.WriteFile(filepath.Join(out, "model.safetensors"), tensors, safetensors.PyTorch)
}

func endTokens(folder string) (ends []int64) {
	for _, name := range []string{"generation_config.json", modelConfig} {
		var one struct {
			EOS *int64 `json:"eos_token_id"`
		}
		var several struct {
			EOS []int64 `json:"eos_token_id"`
		}
		content, _ := disk.Read(filepath.Join(folder, name), disk.MaxJSON) // it may be missing
		if json.Unmarshal(content, &one) == nil && one.EOS != nil {
			ends = append(ends, *one.EOS)
		} else if json.Unmarshal(content, &several) == nil {
			ends = append(ends, several.EOS...)
		}
	}
	return ends
}

// takeAdapter sets --lora from the folder of --adapter, unless --lora is given.
func (f *trainFlags) takeAdapter(s *pflag.FlagSet) error {
	if f.weights.adapter == "" || s.Changed("lora") {
		return nil
	}
	o, err := models.ReadAdapter(f.weights.adapter)
	if err == nil {
		err = s.Set("lora", (&adapters{o}).String())
	}
	if err != nil {
		return badUsage("--adapter %s: %s", f.weights.adapter, message(err))
	}
	return nil
}
