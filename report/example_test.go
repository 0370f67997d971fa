package report_test

import (
	"bytes"
	"fmt"
	"log"

	"penstock.example/metrics"
	"penstock.example/report"
)

// A page of a run's numbers: one file that loads nothing.
func ExampleWrite() {
	var page bytes.Buffer
	err := report.Write(&page, report.Page{
		Run:     report.Run{Title: "resnet20 on fashion-mnist"},
		History: metrics.History{Steps: []metrics.Step{{Step: 1, Loss: 2.3, LR: 0.1}, {Step: 2, Loss: 2.1, LR: 0.1}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(bytes.Contains(page.Bytes(), []byte("Content-Security-Policy")))
	// Output:
	// true
}
