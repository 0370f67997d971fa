package command

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
)

// Networks are planned without a limit and under some, and train by these plans: no device holds more
// than the limit.
func TestPlansOfNetworksRun(t *testing.T) {
	text := textFile(t, "text.txt", strings.Repeat("The stages of the pipeline are busy. ", 40))
	for _, network := range []string{
		"mlp --set depth=6,width=128 --data synthetic --data-set train=2048 --batch 2048 --schedule " +
			"gpipe --optimizer adam",
		"gpt --set depth=2,width=16 --window 64 --data text --data-dir " + text +
			" --batch 16 --schedule 1f1b",
		"resnet20 --set width=4 --data synthetic --data-set size=16 --batch 8 --schedule gpipe",
		"amoebanetd --set L=3,D=16 --data synthetic --data-set size=32 --batch 8 --schedule 1f1b",
		"unet --set B=1,C=4,depth=2,dropout=0 --data synthetic --data-set size=32,classes=4 --batch 4 " +
			"--schedule gpipe",
		"densenet121 --set growth=4 --data synthetic --data-set size=32 --batch 8 --schedule gpipe",
	} {
		words := strings.Fields(network)
		t.Run(words[0], func(t *testing.T) {
			if words[0] != "mlp" && words[0] != "gpt" {
				full(t)
			}
			again, limits := 0, 0
			var most int64
			for try := 0; again == 0 || limits < 3; try++ {
				file := filepath.Join(t.TempDir(), "plan.json")
				limit := int64((1 - 0.04*float64(try)) * float64(most)) // 0 is none
				args := with([]string{"plan", "--out", file, "--devices", "2", "--chunks", "4", "--threads",
					"1", "--repeats", "1", "--model"}, words...)
				if limit > 0 {
					args = with(args, "--memory-limit", fmt.Sprint(limit))
				}
				if r := command(t, args...); r.code != exitDone {
					if limit == 0 || !strings.Contains(r.stderr, "no plan keeps the limits") &&
						!strings.Contains(r.stderr, "--memory-limit") {
						t.Fatalf("within %d bytes: %+v", limit, r)
					}
					break
				}
				content := mustRead(t, file)
				var line planJSON
				noerr.Do(t, json.Unmarshal(content, &line))
				most, limits = max(most, slices.Max(line.Peak)), limits+1
				for _, s := range line.Page.Plan.Stages {
					again += s.Recomputed()
				}
				data := words[1:]
				run := []string{"train", "--plan", file, "--steps", "2", "--format", "json"}
				for i := 0; i+1 < len(data); i += 2 {
					if strings.HasPrefix(data[i], "--data") || data[i] == "--window" {
						run = append(run, data[i], data[i+1])
					}
				}
				steps, _ := lines(t, must(t, run...).stdout)
				for _, s := range steps {
					for device, held := range s.PeakBytes {
						if limit > 0 && max(held, line.Peak[device]) > limit {
							t.Errorf("within %d bytes, step %d: device %d held %d bytes, and the plan "+
								"says %d", limit, s.Step, device, held, line.Peak[device])
						}
					}
				}
			}
			if limits < 2 || again == 0 {
				t.Errorf("plans under %d limits below %d bytes, %d forwards run again", limits, most, again)
			}
		})
	}
}
