package draw_test

import (
	"fmt"
	"log"
	"strings"
	"time"

	"penstock.example/internal/draw"
	"penstock.example/schedule"
)

// A step is simulated and drawn.
func ExampleSVG() {
	program, err := schedule.OneFOneB(schedule.Config{Stages: 2, MicroBatches: 4})
	if err != nil {
		log.Fatal(err)
	}
	timeline, err := schedule.Simulate(program, func(a schedule.Action) time.Duration {
		switch a.Kind {
		case schedule.Forward:
			return time.Millisecond
		case schedule.Backward:
			return 2 * time.Millisecond
		}
		return 0 // transfers
	})
	if err != nil {
		log.Fatal(err)
	}
	picture := string(draw.SVG(timeline, draw.Options{Title: "1F1B", Workers: []string{"cpu:0", "cpu:1"}}))
	fmt.Println(strings.HasPrefix(picture, "<svg"), strings.Contains(picture, "cpu:1"))
	// Output: true true
}
