package metrics_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"penstock.example/metrics"
)

// A run that went to step 3 resumes from its checkpoint after step 2: the lines after that are cut off.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, metrics.FileName)
	run := func(from, to int64) {
		l, err := metrics.Open(path, from)
		if err != nil {
			log.Fatal(err)
		}
		defer l.Close()
		for step := from + 1; step <= to; step++ {
			if err := l.Step(metrics.Step{Step: step, Loss: 1 / float64(step), LR: 0.1}); err != nil {
				log.Fatal(err)
			}
		}
	}
	run(0, 3)
	run(2, 4)
	history, err := metrics.Read(path)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range history.Steps {
		fmt.Printf("step %d  loss %.2f\n", s.Step, s.Loss)
	}
	// Output:
	// step 1  loss 1.00
	// step 2  loss 0.50
	// step 3  loss 0.33
	// step 4  loss 0.25
}
