package controlplane

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestNodesHaveUsersOfTheirOwn(t *testing.T) {
	c, err := loadCredentials(t.TempDir(), []string{"node-1"})
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(c.tokensPath)
	if err != nil {
		t.Fatal(err)
	}
	token := c.tokens[nodeUser("node-1")]
	if token == "" || !slices.Contains(strings.Split(string(content), "\n"), token+",system:node:node-1,node:node-1,system:nodes") {
		t.Errorf("the users are\n%s", content)
	}
}
