package kubernetes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// WorkerPortsAnnotation lists the ports of the engines of one pod: "30000,30001".
const WorkerPortsAnnotation = "smg.ai/worker-ports"

// maxPorts bounds how many engines one pod can have.
const maxPorts = 256

// parsePorts reads "30000" or "30000,30001".
func parsePorts(text string) ([]int, error) {
	words, err := parseList(text)
	if err != nil {
		return nil, err
	}
	ports := make([]int, 0, len(words))
	for _, w := range words {
		n, err := strconv.ParseUint(w, 10, 16)
		switch {
		case err != nil || n == 0:
			return nil, fmt.Errorf("%.32q is no port from 1 to 65535", w)
		case slices.Contains(ports, int(n)):
			return nil, fmt.Errorf("port %d is named twice", n)
		}
		ports = append(ports, int(n))
	}
	return ports, nil
}

// parseBootstrapPorts reads a port or none, for all of n engines or a list of n.
func parseBootstrapPorts(text string, n int) ([]config.BootstrapPort, error) {
	words, err := parseList(text)
	if err != nil {
		return nil, err
	}
	if len(words) != 1 && len(words) != n {
		return nil, fmt.Errorf("it lists %d ports for %d engines", len(words), n)
	}
	ports := make([]config.BootstrapPort, n)
	for i := range ports {
		if len(words) == 1 && i > 0 {
			ports[i] = ports[0]
			continue
		}
		if err := ports[i].UnmarshalText([]byte(words[i])); err != nil {
			return nil, fmt.Errorf("%.32q %w", words[i], err)
		}
	}
	return ports, nil
}

// parseEngineIDs reads the ids of n engines.
func parseEngineIDs(text string, n int) ([]string, error) {
	words, err := parseList(text)
	if err != nil {
		return nil, err
	}
	if len(words) != n {
		return nil, fmt.Errorf("it lists %d ids for %d engines", len(words), n)
	}
	for i, w := range words {
		switch {
		case !engine.ValidName(w):
			return nil, fmt.Errorf("%.32q is no id", w)
		case slices.Contains(words[:i], w):
			return nil, fmt.Errorf("%.32q is named twice", w)
		}
	}
	return words, nil
}

// parseList reads words with commas between.
func parseList(text string) ([]string, error) {
	if n := strings.Count(text, ",") + 1; n > maxPorts {
		return nil, fmt.Errorf("it lists %d values, more than %d", n, maxPorts)
	}
	words := strings.Split(text, ",")
	for i, w := range words {
		words[i] = strings.TrimSpace(w)
	}
	return words, nil
}
