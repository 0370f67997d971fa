package command

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// writeFolder writes a small model in Hugging Face's layout, with weights by a seed and the tokenizer of the
// fixtures. of is the name of a folder of package models.
func writeFolder(t *testing.T, of string) string {
	t.Helper()
	return writeFolderAt(t, filepath.Join(t.TempDir(), of), of)
}

func writeFolderAt(t *testing.T, folder, of string) string {
	t.Helper()
	var config map[string]any
	read := func(path string) []byte {
		content := mustRead(t, path)
		return content
	}
	noerr.Do(t, json.Unmarshal(read(filepath.Join("../models/testdata/folders", of, modelConfig)), &config))
	if of != "vit" {
		config["vocab_size"], config["eos_token_id"] = 380, 0
	}
	if of == "llama" {
		config["max_position_embeddings"] = 320
	}
	content, _ := json.Marshal(config)
	noerr.Do(t, os.Mkdir(folder, 0o777))
	for name, content := range map[string][]byte{modelConfig: content,
		"tokenizer.json": read(fixtureTokenizer + "/tokenizer.json")} {
		mustWrite(t, filepath.Join(folder, name), string(content))
	}
	m := noerr.Get(models.New(folder, models.Options{}))(t)
	defer nn.Free(m)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	nn.Materialise(c, nn.State(m), 9)
	noerr.Do(t, nn.Save(filepath.Join(folder, "model.safetensors"), m))
	return folder
}

// tune trains adapters of a folder's model on a text.
func tune(t *testing.T, folder, layers string, args ...string) []string {
	t.Helper()
	text := textFile(t, "text.txt", strings.Repeat("The stages of the pipeline are busy. ", 60))
	return with([]string{"train", "--model", folder, "--lora", "r=3,alpha=6,dropout=0.1,layers=" + layers,
		"--data",
		"text", "--data-dir", text, "--window", "16", "--batch", "4", "--chunks", "2", "--optimizer",
		"adamw", "--lr",
		"0.01"}, args...)
}

// TestFolderIsAModel: a run starts from a folder's weights and trains adapters alone, on any cut. It goes on
// and is evaluated, prompted and exported when the folder is gone. What it exports is a model again.
func TestFolderIsAModel(t *testing.T) {
	for of, layers := range map[string]string{"llama": "*.q_proj *.v_proj", "gpt2": "*.attn.c_attn"} {
		t.Run(of, func(t *testing.T) {
			folder := writeFolder(t, of)
			whole, parts := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "parts")
			wantSum := sha(t, tune(t, folder, layers, "--steps", "4", "--out", whole, "--format", "json")...)
			first := must(t, tune(t, folder, layers, "--steps", "2", "--epochs", "9", "--out", parts,
				"--stages", "2")...)
			says(t, first.stderr, "--model "+folder+"/model.safetensors: loaded ")
			before := opened(t, filepath.Join(folder, "model.safetensors"))
			noerr.Do(t, os.RemoveAll(folder))
			if sum := sha(t, "train", "--resume", "--out", parts, "--steps", "4", "--format",
				"json"); sum != wantSum {
				t.Error("two stages and a resumed run give other weights")
			}
			want := evaluated(t, parts, "--stages", "3")

			merged, adapter := filepath.Join(t.TempDir(), "merged"), filepath.Join(t.TempDir(), "adapter")
			must(t, "export", parts, "--out", merged)
			must(t, "export", parts, "--adapter", "--out", adapter)
			after := opened(t, filepath.Join(merged, "model.safetensors"))
			if !slices.Equal(slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before))) {
				t.Error("other tensors are exported")
			}
			for name, was := range before {
				adapted := strings.HasSuffix(name, ".weight") && slices.ContainsFunc(strings.Fields(layers),
					func(pattern string) bool {
						return nn.Match(pattern, strings.TrimSuffix(name, ".weight"))
					})
				if bytes.Equal(was.Data, after[name].Data) == adapted {
					t.Errorf("%s: changed is %v", name, !adapted)
				}
			}
			text := textFile(t, "text.txt", strings.Repeat("The stages of the pipeline are busy. ", 60))
			onText := []string{"--data", "text", "--data-dir", text, "--window", "16", "--batch", "4"}
			base := writeFolder(t, of)
			for _, model := range [][]string{{merged}, {base, "--adapter", adapter, "--stages", "2"}} {
				again := evaluated(t, with(model, onText...)...)
				if d := *again.Loss - *want.Loss; d > 1e-5 || d < -1e-5 {
					t.Errorf("%v: the loss is %v, want %v", model, *again.Loss, *want.Loss)
				}
			}
			drawn := []string{"--prompt", "The stages", "--tokens", "9", "--temperature", "1"}
			prompted := must(t, with([]string{"predict", base, "--adapter", adapter}, drawn...)...).stdout
			if want := must(t, with([]string{"predict", parts}, drawn...)...).stdout; prompted != want {
				t.Errorf("%q, want %q", prompted, want)
			}
			refuses(t, []string{"predict", parts, "--adapter", adapter, "--prompt", "a"}, exitUsage,
				"--adapter: "+parts, "want a folder with a model of Hugging Face")
			r := must(t, tune(t, merged, layers, "--steps", "1", "--adapter", adapter)...)
			says(t, r.stderr, "--adapter "+adapter+"/adapter_model.safetensors: loaded ")
		})
	}
}

// TestFolderGetsANewHead: a ViT for other classes trains a new classifier, with adapters only if it is named,
// and its export has the classes. Its pictures are normalised as the folder says.
func TestFolderGetsANewHead(t *testing.T) {
	folder, out := writeFolder(t, "vit"), filepath.Join(t.TempDir(), "out")
	const normal = `{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}`
	mustWrite(t, filepath.Join(folder, "preprocessor_config.json"), normal)
	args := []string{"train", "--model", folder, "--lora", "r=2,layers=*.query", "--data", "images",
		"--data-dir",
		folderOf(t), "--data-set", "size=12", "--batch", "6", "--chunks", "2", "--steps", "2", "--out", out}
	refuses(t, args, exitUsage, "model.safetensors has no classifier.weight of this shape",
		"--train-only classifier")
	r := must(t, with(args, "--train-only", "classifier")...)
	says(t, r.stderr, "skipped: ", "classifier.weight, classifier.bias")
	state, err := os.ReadFile(filepath.Join(out, "step-000002", "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	says(t, strings.Join(strings.Fields(string(state)), ""), `"mean":[0.1,0.2,0.3],"std":[0.4,0.5,0.6]`)
	exported := filepath.Join(t.TempDir(), "exported")
	must(t, "export", out, "--out", exported)
	config := mustRead(t, filepath.Join(exported, modelConfig))
	says(t, strings.Join(strings.Fields(string(config)), ""), `"id2label":{"0":"dark","1":"light"}`)
	before, after := opened(t, filepath.Join(folder, "model.safetensors")), opened(t, filepath.Join(exported,
		"model.safetensors"))
	for name, was := range before {
		adapted := nn.Match("*.query.weight", name) || strings.HasPrefix(name, "classifier.")
		if bytes.Equal(was.Data, after[name].Data) == adapted {
			t.Errorf("%s: changed is %v", name, !adapted)
		}
	}
	if n := after["classifier.weight"].Shape[0]; n != 2 {
		t.Errorf("%d classes are exported, want 2", n)
	}
}

// TestRefusesFolders: folders whose files do not fit each other are refused by name, before --out is made.
func TestRefusesFolders(t *testing.T) {
	replaced := func(name, from, to string) func(*testing.T, string) {
		return func(t *testing.T, folder string) {
			path := filepath.Join(folder, name)
			content, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(content, []byte(from), []byte(to), 1), 0o666)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// in two files with an index, which change replaces
	sharded := func(change func(index string) string, second int64) func(*testing.T, string) {
		return func(t *testing.T, folder string) {
			whole := filepath.Join(folder, "model.safetensors")
			files, index := [2][]safetensors.Tensor{}, map[string]string{}
			for name, tensor := range opened(t, whole) {
				n := len(index) % 2
				files[n], index[name] = append(files[n], tensor),
					[]string{"1.safetensors", "2.safetensors"}[n]
			}
			for i, name := range []string{"1.safetensors", "2.safetensors"} {
				noerr.Do(t, safetensors.WriteFile(filepath.Join(folder, name), files[i], nil))
			}
			text, _ := json.Marshal(map[string]any{"weight_map": index})
			path := filepath.Join(folder, "model.safetensors.index.json")
			mustWrite(t, path, change(string(text)))
			os.Remove(whole)
			switch path := filepath.Join(folder, "2.safetensors"); {
			case second < 0:
				os.Remove(path)
			case second > 0:
				os.Truncate(path, second)
			}
		}
	}
	same := func(index string) string { return index }
	for reason, row := range map[string]struct {
		change func(t *testing.T, folder string)
		args   string
		want   []string
	}{
		"no weights": {func(_ *testing.T, folder string) {
			os.Remove(filepath.Join(folder, "model.safetensors"))
		}, "", []string{"FOLDER has neither model.safetensors nor its index"}},
		"a shard is missing": {sharded(same, -1), "",
			[]string{"FOLDER/model.safetensors.index.json", "2.safetensors", "copy the folder's files"}},
		"a shard is short": {sharded(same, 9000), "", []string{"2.safetensors", "it is truncated"}},
		"a tensor twice": {sharded(func(index string) string {
			return strings.Replace(index, "{", `{"weight_map": {}, `, 1)
		}, 0), "", []string{"index.json", "duplicate", "copy the folder's files"}},
		"another depth": {replaced(modelConfig, `"num_hidden_layers":2`, `"num_hidden_layers":1`), "",
			[]string{"FOLDER/model.safetensors is not of this model", "9 not in the model",
				"want the config.json"}},
		"another width": {replaced(modelConfig, `"intermediate_size":40`, `"intermediate_size":44`), "",
			[]string{"6 of another shape", "[40 96] in the file and [44 96] in the model"}},
		"a field of another model": {replaced(modelConfig, `"mlp_bias":false`, `"mlp_bias":true`), "",
			[]string{"FOLDER/config.json: mlp_bias is true; want it false"}},
		"tokens beyond the vocabulary": {replaced(modelConfig, `"vocab_size":380`, `"vocab_size":370`), "",
			[]string{"377", "want at most the 370 tokens"}},
		"tokens beyond the weights": {replaced("tokenizer.json", `"added_tokens": [`,
			`"added_tokens": [{"id":500,"content":"<x>"},`), "",
			[]string{"501", "want at most the 380 tokens"}},
		"no tokenizer": {func(_ *testing.T, folder string) {
			os.Remove(filepath.Join(folder, "tokenizer.json"))
		}, "", []string{"want a tokenizer.json"}},
		"longer than the positions": {nil, "--window 321", []string{"want at most the 320 positions"}},
		"layers that are not there": {nil, "--lora layers=*.c_attn",
			[]string{`--lora or --adapter: no linear layer with a weight of its own is named "*.c_attn"; ` +
				`there are "model.layers.0.self_attn.q_proj"`}},
		"an adapter of another model": {nil, "--adapter ../models/testdata/folders/gpt2/adapter",
			[]string{"--adapter: no linear layer with a weight of its own is named", "transformer.h"}},
		"an adapter of another width": {nil, "--adapter ../models/testdata/folders/llama/adapter --lora r=5",
			[]string{"--adapter", "of another shape"}},
		"no data": {func(t *testing.T, folder string) {
			text := filepath.Join(filepath.Dir(folder), flagsFile) // of something else
			if err := os.WriteFile(text, []byte(`data = "text"`), 0o666); err != nil {
				t.Fatal(err)
			}
			refuses(t, []string{"eval", folder}, exitUsage, "--data is needed")
			os.Remove(filepath.Join(folder, modelConfig))
		}, "", []string{modelConfig}},
		"no folder": {nil, "--model ./nothing", []string{"nothing/config.json"}},
		"no rank":   {nil, "--lora r=0", []string{"want a whole number from 1"}},
	} {
		t.Run(reason, func(t *testing.T) {
			folder, out := writeFolder(t, "llama"), filepath.Join(t.TempDir(), "out")
			if row.change != nil {
				row.change(t, folder)
			}
			args := tune(t, folder, "*.q_proj *.v_proj", "--steps", "1", "--out", out)
			if row.args != "" {
				if strings.Contains(row.args, "--adapter") && !strings.Contains(row.args, "--lora") {
					args = slices.Delete(args, 3, 5) // the adapter says which layers
				}
				args = with(args, strings.Fields(row.args)...)
			}
			for i := range row.want {
				row.want[i] = strings.ReplaceAll(row.want[i], "FOLDER", folder)
			}
			refuses(t, args, exitUsage, row.want...)
			if _, err := os.Stat(out); err == nil {
				t.Error("--out was made")
			}
			if row.change != nil {
				text := textFile(t, "text.txt", strings.Repeat("The stages of the pipeline are busy. ", 60))
				refuses(t, []string{"predict", folder, "--prompt", "boats"}, exitUsage, folder)
				eval := []string{"eval", folder, "--data", "text", "--data-dir", text}
				refuses(t, eval, exitUsage, folder)
				for _, refused := range [][]string{args, eval} { // neither can rename, skip or load in part
					if r := command(t, refused...); strings.Contains(r.stderr, "skip them") {
						t.Errorf("%q: %s", refused, r.stderr)
					}
				}
			}
		})
	}
}

// TestGuideOfFolders runs the lines of the guide's section on a small folder.
func TestGuideOfFolders(t *testing.T) {
	guide := mustRead(t, "../docs/guide.md")
	_, section, _ := strings.Cut(string(guide), "\n## Fine-tune a model from Hugging Face\n")
	_, lines, _ := strings.Cut(section, "```sh\n")
	lines, _, found := strings.Cut(lines, "```")
	self, err := os.Executable()
	if err != nil || !found {
		t.Fatal(err, found)
	}
	directory := t.TempDir()
	writeFolderAt(t, filepath.Join(directory, "llama"), "llama")
	talk := `{"prompt": "Where do boats wait?", "completion": " In the lock, until the water is level."}` +
		"\n" +
		`{"text": "The stages of the pipeline are busy, and the batch goes on."}` + "\n"
	mustWrite(t, filepath.Join(directory, "talks.jsonl"), strings.Repeat(talk, 80))
	shell := exec.Command("sh", "-ec", `penstock() { "`+self+`" "$@"; }`+"\n"+lines)
	shell.Dir, shell.Env = directory, append(os.Environ(), asCommand+"=1")
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	says(t, string(out), "320", "samples of jsonl (test)", "tuned: 21 tensors", "adapter: 8 tensors")
	for _, name := range []string{"tuned/config.json", "tuned/tokenizer.json", "tuned/model.safetensors",
		"adapter/adapter_config.json", "adapter/" + models.AdapterWeights} {
		if _, err := os.Stat(filepath.Join(directory, name)); err != nil {
			t.Error(err)
		}
	}
}
