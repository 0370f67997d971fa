// Package metrics writes down what a training run measures after each step: as lines of JSON, which
// a resumed run goes on with without gaps or doubles (Log), and as event files for TensorBoard
// (Events). It measures nothing itself.
//
// {"step":7,"epoch":0,"time":1763838000.123,"loss":0.61,"lr":0.1,"grad_norm":1.2,"samples_per_s":912.5,"peak_bytes":[8123456,7345678]}
//
//	{"step":7,"epoch":0,"time":1763838001.456,"accuracy":0.8125}
//
// The first is a Step, the second a Test. Further fields may come; these stay.
package metrics
