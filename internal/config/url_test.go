package config

import (
	"fmt"
	"testing"
)

// TestBaseURLOfClients guards against two workers that replace each other for ever: a
// base URL with and without the /v1 of OpenAI's clients is one engine.
func TestBaseURLOfClients(t *testing.T) {
	c, warnings, err := Load(words("--worker-urls http://a:1/v1 http://b:1"), nil, nil)
	want := "[flag --worker-urls: workers[0].url: ends in /v1, which belongs to the paths of requests; http://a:1 is taken as the engine's base URL]"
	if err != nil || fmt.Sprint(warnings) != want || c.Workers[0].URL != "http://a:1" {
		t.Errorf("%v, warnings %v, want %s", err, warnings, want)
	}
	if _, _, err := Load(words("--worker-urls http://a:1/v1 http://a:1"), nil, nil); err == nil {
		t.Error("http://a:1/v1 and http://a:1 pass for two workers")
	}
}
