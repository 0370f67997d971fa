// Package planfile reads and writes chains and plans as JSON, an element of a list in each line.
// Fields that are unknown, missing, null, there twice, or in another case are errors.
package planfile
