package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processCPU is the CPU time of a process so far, user and system, all threads
// that are and were. It reads the process's CPU clock, which counts in
// nanoseconds where /proc counts in hundredths of a second; the clock's number
// is made as clock_getcpuclockid(3) makes it.
func processCPU(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0, fmt.Errorf("cannot read the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// processRSS is the resident memory of a process in bytes. smaps_rollup is
// exact; the count in /proc/PID/status lags behind.
func processRSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory of process %d: %w", pid, err)
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) == 3 && f[0] == "Rss:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("cannot read the memory of process %d: no Rss in smaps_rollup", pid)
}

// childAttr has the kernel end a child with the thread that started it, and
// keeps a terminal's Ctrl-C from reaching it before this program has reported.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// setAffinity binds the calling thread, and what it starts, to CPUs; none binds
// to nothing.
func setAffinity(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	return bindThread(0, cpus)
}

func bindThread(tid int, cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	return unix.SchedSetaffinity(tid, &set)
}

// bindAll binds all threads of this process, and those they start.
func bindAll(cpus []int) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("cannot list threads: %w", err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := bindThread(tid, cpus); err != nil {
			return fmt.Errorf("cannot bind thread %d to CPUs %v: %w", tid, cpus, err)
		}
	}
	return nil
}

// raiseFiles lets this process and its children open as many files as the
// system allows. Go would raise its own limit alone.
func raiseFiles() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("cannot read the limit of open files: %w", err)
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("cannot raise the limit of open files: %w", err)
	}
	return nil
}

// machine describes the CPU and the kernel.
func machine() string {
	cpu := "unknown CPU"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return cpu + ", Linux " + kernel
}

// loadAverage is the system's load of the last minute.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	f, _, _ := strings.Cut(string(b), " ")
	return f
}
