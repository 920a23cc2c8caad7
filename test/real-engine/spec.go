package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Model is the name under which the engines serve the tiny model.
const Model = "tiny"

// Sizes the engines are started with.
const (
	MaxModelLen = 1024 // tokens of prompt and answer together
	MaxSeqs     = 16   // requests that run at one time
	BlockSize   = 32   // tokens in a KV block; the CPU backend takes multiples of 32
	Blocks      = 512
	FewBlocks   = 64 // those of Two, whose cache is full after a few prompts
	// KVBytesPerToken follows from tinymodel.py: a key and a value of 32 floats for
	// each of 2 heads in each of 2 layers.
	KVBytesPerToken = 2 * 32 * 4 * 2 * 2
)

// Role is what an engine does.
type Role string

// The roles. One and Two run whole requests and have no connector.
const (
	One     Role = "one"
	Two     Role = "two"
	Prefill Role = "prefill"
	Decode  Role = "decode"

	// Those that are spoken to by gRPC, and have no HTTP.
	GRPCOne     Role = "grpc-one"
	GRPCPrefill Role = "grpc-prefill"
	GRPCDecode  Role = "grpc-decode"
	// Render turns requests into token ids, as engines behind HTTP do, and has no engine.
	Render Role = "render"
)

// Roles are all of them.
var Roles = []Role{One, Two, Prefill, Decode, GRPCOne, GRPCPrefill, GRPCDecode, Render}

// GRPC tells whether engines of the role are spoken to by gRPC.
func (r Role) GRPC() bool { return r == GRPCOne || r == GRPCPrefill || r == GRPCDecode }

// decodes tells whether the role is the second of a pair.
func (r Role) decodes() bool { return r == Decode || r == GRPCDecode }

// Spec is an engine as it is to be started.
type Spec struct {
	Role Role
	Port int
	// SideChannel is the port at which NIXL agents find each other; 0 without NIXL.
	SideChannel int
}

// EventsPort is the port of the engine's KV events, ReplayPort that where it repeats them.
func (s Spec) EventsPort() int { return s.Port + 20 }

// ReplayPort is described there.
func (s Spec) ReplayPort() int { return s.Port + 30 }

// Blocks is how many KV blocks the engine has.
func (s Spec) Blocks() int {
	if s.Role == Two {
		return FewBlocks
	}
	return Blocks
}

// URL is the engine's base URL.
func (s Spec) URL() string {
	if s.Role.GRPC() {
		return "grpc://" + s.addr()
	}
	return "http://" + s.addr()
}

func (s Spec) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// Home is where the engine is installed, and everything it writes.
type Home string

// FindHome is the folder REAL_ENGINE_HOME names, or its default, as in install.sh.
func FindHome() (Home, error) {
	if dir := os.Getenv("REAL_ENGINE_HOME"); dir != "" {
		return Home(dir), nil
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("cannot tell where the engine is installed, set REAL_ENGINE_HOME: %w", err)
		}
		cache = filepath.Join(home, ".cache")
	}
	return Home(filepath.Join(cache, "sluice-real-engine")), nil
}

func (h Home) path(elem ...string) string {
	return filepath.Join(append([]string{string(h)}, elem...)...)
}

// Installed tells whether install.sh has finished there.
func (h Home) Installed() bool {
	found, _ := filepath.Glob(h.path("installed-*"))
	return len(found) > 0
}

// ports are those of a role: REAL_ENGINE_PORT, 28100 by default, and some above.
func ports(role Role) (spec Spec, err error) {
	base := 28100
	if s := os.Getenv("REAL_ENGINE_PORT"); s != "" {
		if base, err = strconv.Atoi(s); err != nil || base < 1 || base > 65000 {
			return Spec{}, fmt.Errorf("REAL_ENGINE_PORT is %q, not a port", s)
		}
	}
	switch role {
	case One:
		return Spec{Role: role, Port: base + 1}, nil
	case Two:
		return Spec{Role: role, Port: base + 4}, nil
	case Prefill:
		return Spec{Role: role, Port: base + 2, SideChannel: base + 12}, nil
	case Decode:
		return Spec{Role: role, Port: base + 3, SideChannel: base + 13}, nil
	case GRPCOne:
		return Spec{Role: role, Port: base + 5}, nil
	case GRPCPrefill:
		return Spec{Role: role, Port: base + 6, SideChannel: base + 16}, nil
	case GRPCDecode:
		return Spec{Role: role, Port: base + 7, SideChannel: base + 17}, nil
	case Render:
		return Spec{Role: role, Port: base + 8}, nil
	}
	return Spec{}, fmt.Errorf("unknown role %q: known are %v", role, Roles)
}

// command is the engine's command line.
func (s Spec) command(h Home) []string {
	if s.Role == Render {
		return []string{
			h.path("venv", "bin", "vllm"), "launch", "render", h.path("model"),
			"--served-model-name", Model, "--max-model-len", strconv.Itoa(MaxModelLen),
			"--enable-auto-tool-choice", "--tool-call-parser", "hermes", // else it refuses chats with tools
			"--host", "127.0.0.1", "--port", strconv.Itoa(s.Port),
		}
	}
	argv := []string{
		h.path("venv", "bin", "vllm"), "serve", h.path("model"),
		"--served-model-name", Model,
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.Port),
		"--dtype", "float32", "--enforce-eager",
		"--max-model-len", strconv.Itoa(MaxModelLen),
		"--max-num-seqs", strconv.Itoa(MaxSeqs),
		"--block-size", strconv.Itoa(BlockSize),
		"--num-gpu-blocks-override", strconv.Itoa(s.Blocks()),
		"--no-enable-log-requests",
	}
	if s.Role.GRPC() {
		// Events of the KV cache are on by default, and told by gRPC.
		argv = append(argv, "--grpc")
	} else {
		argv = append(argv,
			"--enable-auto-tool-choice", "--tool-call-parser", "hermes",
			"--enable-prompt-tokens-details",
			"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":"kv@%s"}`,
				s.EventsPort(), s.ReplayPort(), s.Role))
	}
	if s.SideChannel != 0 {
		role := "kv_producer"
		if s.Role.decodes() {
			role = "kv_consumer"
		}
		argv = append(argv, "--kv-transfer-config", fmt.Sprintf(
			`{"kv_connector":"NixlConnector","kv_role":%q,"kv_buffer_device":"cpu","kv_connector_extra_config":{"num_threads":1}}`, role))
	}
	return argv
}

// environment keeps the engine off the network, off GPUs and on few threads.
func (s Spec) environment(h Home) []string {
	env := append(os.Environ(),
		"PYTHONUNBUFFERED=1",
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1",
		// Else the first request for logprobs has a kernel compiled: it takes half a
		// minute, needs a C++ compiler, and where that fails the engine dies of it.
		"TORCHDYNAMO_DISABLE=1",
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
		"VLLM_HOST_IP=127.0.0.1", "VLLM_CACHE_ROOT="+h.path("cache"),
		"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_LOG_LEVEL=error",
	)
	if s.Role == Two || s.Role == Prefill {
		env = append(env, "VLLM_SERVER_DEV_MODE=1") // for POST /reset_prefix_cache
	}
	if s.SideChannel != 0 {
		env = append(env, "VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT="+strconv.Itoa(s.SideChannel))
	}
	return env
}
