//go:build !linux

package main

import (
	"errors"
	"runtime"
	"syscall"
	"time"
)

// The measurements read what only Linux offers; elsewhere the program builds,
// and says so.
var errLinuxOnly = errors.New("only on Linux")

func processCPU(int) (time.Duration, error) { return 0, errLinuxOnly }
func processRSS(int) (int64, error)         { return 0, errLinuxOnly }
func childAttr() *syscall.SysProcAttr       { return nil }
func bindAll([]int) error                   { return errLinuxOnly }
func raiseFiles() error                     { return nil }
func machine() string                       { return runtime.GOOS + "/" + runtime.GOARCH }
func loadAverage() string                   { return "unknown" }

func setAffinity(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	return errLinuxOnly
}
