module penstock.example/bench

go 1.26

require penstock.example v0.0.0

replace penstock.example => ..
