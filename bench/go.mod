module penstock.example/bench

go 1.26

require penstock.example v0.0.0

require github.com/go-json-experiment/json v0.0.0-20260214004413-d219187c3433 // indirect

replace penstock.example => ..
